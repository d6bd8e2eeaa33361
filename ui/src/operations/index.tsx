/** Workers, queue, limits, schedules, webhooks, credentials: `params.rest` is what follows /operations/ in the address. */
import "./operations.css";
import { EmptyState, Tabs } from "../frame/pieces";
import { go, Link } from "../frame/router";
import { useMay } from "../frame/session";
import { Credentials } from "./credentials";
import { Limits } from "./limits";
import { Overview } from "./overview";
import { Schedules } from "./schedules";
import { Webhooks } from "./webhooks";
import { Workers } from "./workers";

type Room = "overview" | "workers" | "limits" | "schedules" | "webhooks" | "credentials";

const ROOMS: Record<Room, () => any> = { overview: Overview, workers: Workers, limits: Limits, schedules: Schedules, webhooks: Webhooks, credentials: Credentials };

export function Operations({ params }: { params: Record<string, string> }) {
  const mayKeepSecrets = useMay("admin");
  const room = (params.rest || "overview") as Room;
  const Shown = ROOMS[room];
  const tabs: [Room, string][] = [
    ["overview", "Overview"],
    ["workers", "Workers"],
    ["limits", "Limits"],
    ["schedules", "Schedules"],
    ["webhooks", "Webhooks"],
  ];
  if (mayKeepSecrets) tabs.push(["credentials", "Credentials"]);
  if (!Shown) {
    return (
      <EmptyState title="There is no such page" action={<Link to="/operations">To the overview</Link>}>
        <p>The address may be old, or a letter is missing.</p>
      </EmptyState>
    );
  }
  return (
    <>
      <div class="page-head">
        <h1>Operations</h1>
      </div>
      <Tabs label="Parts of operations" tabs={tabs} value={room} onChange={(to) => go(to === "overview" ? "/operations" : `/operations/${to}`)} />
      <div role="tabpanel" id={`panel-${room}`} aria-labelledby={`tab-${room}`} class="room">
        <Shown />
      </div>
    </>
  );
}

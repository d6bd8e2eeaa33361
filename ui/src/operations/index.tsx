/** Workers, queue, limits, schedules, webhooks, credentials; `params.rest` is the part of the path after /operations/. */
import { EmptyState, Tabs } from "../common/components";
import { go, Link } from "../common/router";
import { useHasRole } from "../common/session";
import { Backfills } from "./backfills";
import { Credentials } from "./credentials";
import { Deliveries } from "./deliveries";
import { Limits } from "./limits";
import { Notifications } from "./notifications";
import { Overview } from "./overview";
import { Schedules } from "./schedules";
import { Schemas } from "./schemas";
import { States } from "./states";
import { Tokens } from "./tokens";
import { Triggers } from "./triggers";
import { Webhooks } from "./webhooks";
import { Workers } from "./workers";

type Section = "overview" | "workers" | "limits" | "schedules" | "backfills" | "triggers" | "deliveries" | "webhooks" | "notifications" | "schemas" | "state" | "credentials" | "tokens";

const SECTIONS: Record<Section, () => any> = { overview: Overview, workers: Workers, limits: Limits, schedules: Schedules, backfills: Backfills, triggers: Triggers, deliveries: Deliveries, webhooks: Webhooks, notifications: Notifications, schemas: Schemas, state: States, credentials: Credentials, tokens: Tokens };

export function Operations({ params }: { params: Record<string, string> }) {
  const isAdmin = useHasRole("admin");
  const section = (params.rest || "overview") as Section;
  const Shown = SECTIONS[section];
  const tabs: [Section, string][] = [
    ["overview", "Overview"],
    ["workers", "Workers"],
    ["limits", "Limits"],
    ["schedules", "Schedules"],
    ["backfills", "Backfills"],
    ["triggers", "Triggers"],
    ["deliveries", "Deliveries"],
    ["webhooks", "Webhooks"],
    ["notifications", "Notifications"],
    ["schemas", "Schemas"],
    ["state", "State"],
  ];
  if (isAdmin) tabs.push(["credentials", "Credentials"], ["tokens", "Tokens"]);
  if (!Shown) {
    return (
      <EmptyState title="Page not found" action={<Link to="/operations">Go to overview</Link>}>
        <p>The address may be outdated or misspelled.</p>
      </EmptyState>
    );
  }
  return (
    <>
      <div class="page-head">
        <h1>Operations</h1>
      </div>
      <Tabs label="Operations" tabs={tabs} value={section} onChange={(to) => go(to === "overview" ? "/operations" : `/operations/${to}`)} />
      <div role="tabpanel" id={`panel-${section}`} aria-labelledby={`tab-${section}`} class="section">
        <Shown />
      </div>
    </>
  );
}

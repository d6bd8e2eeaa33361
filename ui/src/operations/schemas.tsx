/** Registered schemas: the newest version of each, with its text. */
import { useState } from "preact/hooks";
import type { Page } from "../common/api";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { useFetch } from "../common/fetch";
import { Time } from "../common/times";
import { JsonTree } from "../execution/json";
import { List } from "./components";

interface Schema {
  name: string;
  version: number;
  compatible?: string;
  /** ISO text or seconds. */
  registered_at?: string | number;
  by?: string;
  schema?: unknown;
  json_schema?: unknown;
}

export function Schemas() {
  const { value, problem, reload } = useFetch<Page<Schema>>("/api/schemas", { limit: 1000 }, 10_000);
  const [open, setOpen] = useState<string | null>(null);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading schemas" />;
  if (!value.items.length) {
    return (
      <EmptyState title="No schemas">
        <p>A schema describes results; tasks and steps name it under spec.validation. From a terminal:</p>
        <pre tabIndex={0}>noetl schema register orders orders.json</pre>
      </EmptyState>
    );
  }
  return (
    <List heads={["Schema", "Version", "Compatible", "Registered"]}>
      {value.items.map((each) => (
        <tr key={each.name}>
          <td>
            <strong>{each.name}</strong>
            {open === each.name && <JsonTree value={each.schema ?? each.json_schema ?? each} open={4} />}
          </td>
          <td class="number">v{each.version}</td>
          <td>{each.compatible ?? "–"}</td>
          <td>
            <Time at={typeof each.registered_at === "number" ? each.registered_at * 1000 : each.registered_at} />
          </td>
          <td class="right">
            <Button class="small" aria-label={`${open === each.name ? "Hide" : "Show"} ${each.name}`} onClick={() => setOpen(open === each.name ? null : each.name)}>
              {open === each.name ? "Hide" : "Show"}
            </Button>
          </td>
        </tr>
      ))}
    </List>
  );
}

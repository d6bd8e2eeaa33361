/** Triggers of all kinds, what they received, and notification rules. */
import { api, type Page } from "../common/api";
import { Button, EmptyState, ErrorState, Loading, notify, Status } from "../common/components";
import { useFetch } from "../common/fetch";
import { go, Link, useQueryValue } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { useState } from "preact/hooks";
import { actThenReload, ConfirmDialog, List, ListHeader } from "./components";
import { NotificationForm, type Rule } from "./notification_form";
import { TriggerForm, type TriggerDefinition } from "./trigger_form";

interface Delivery {
  id: string;
  kind: string;
  name: string;
  status: string;
  received_at: string;
  due: string | null;
  execution_id: string | null;
  error: string | null;
}

interface Trigger extends TriggerDefinition {
  paused?: boolean;
  problem?: string | null;
  deliveries: Record<string, number>;
  last_delivery: Delivery | null;
}

const STATE: Record<string, string> = { started: "success", sent: "success", pending: "pending", failed: "failed", skipped: "skipped" };
const LABEL: Record<string, string> = { success: "started" };

export function Triggers() {
  const canEdit = useHasRole("operator");
  const isAdmin = useHasRole("admin");
  const { value, problem, reload } = useFetch<Page<Trigger>>("/api/triggers", { limit: 1000 }, 5000);
  const [editing, setEditing] = useState<Trigger | "new" | null>(null);
  const [removing, setRemoving] = useState<Trigger | null>(null);
  const act = actThenReload(reload);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading triggers" />;
  const add = canEdit && (
    <Button kind="primary" onClick={() => setEditing("new")}>
      Add trigger
    </Button>
  );
  const route = (each: Trigger) => `/api/triggers/${each.kind}/${encodeURIComponent(each.name)}`;
  const mayEdit = (each: Trigger) => canEdit && (isAdmin || each.kind === "execution" || each.kind === "schedule");
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No triggers yet" action={add}>
          <p>Triggers start playbooks: schedules, webhooks, NATS messages, new objects, the end of another playbook. From a terminal:</p>
          <pre tabIndex={0}>noetl trigger add --help</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="What starts playbooks without a request of a user.">{add}</ListHeader>
          <List heads={["Trigger", "Kind", "Playbook", "Deliveries", "Last"]}>
            {value.items.map((each) => (
              <tr key={`${each.kind}/${each.name}`} class={each.paused ? "paused" : ""}>
                <td>
                  <strong>{each.name}</strong>
                  {each.paused && <div class="quiet">paused</div>}
                  {each.problem && <div class="wrong">{each.problem}</div>}
                </td>
                <td>{each.kind}</td>
                <td>
                  <Link to={`/playbooks/${each.path}`}>{each.path}</Link>
                </td>
                <td class="number">
                  <Link to={`/operations/deliveries?name=${encodeURIComponent(each.name)}`}>
                    {Object.entries(each.deliveries)
                      .map(([status, count]) => `${count} ${status}`)
                      .join(", ") || "none"}
                  </Link>
                </td>
                <td>{each.last_delivery ? <DeliveryState delivery={each.last_delivery} /> : <span class="quiet">–</span>}</td>
                <td class="right actions">
                  {canEdit && (
                    <Button class="small" aria-label={`${each.paused ? "Resume" : "Pause"} ${each.name}`} onClick={() => act(() => api.post(`${route(each)}/${each.paused ? "resume" : "pause"}`), each.paused ? `Resumed ${each.name}` : `Paused ${each.name}`)}>
                      {each.paused ? "Resume" : "Pause"}
                    </Button>
                  )}{" "}
                  {mayEdit(each) && (
                    <>
                      <Button class="small" aria-label={`Edit ${each.name}`} onClick={() => (each.kind === "schedule" ? go(`/operations/schedules?edit=${encodeURIComponent(each.name)}`) : each.kind === "webhook" ? go("/operations/webhooks") : setEditing(each))}>
                        Edit
                      </Button>{" "}
                      <Button class="small" kind="danger" aria-label={`Delete ${each.name}`} onClick={() => setRemoving(each)}>
                        Delete
                      </Button>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {editing && (
        <TriggerForm
          known={editing === "new" ? null : editing}
          onClose={() => setEditing(null)}
          onDone={(name) => {
            setEditing(null);
            notify(`Saved ${name}`);
            reload();
          }}
        />
      )}
      {removing && (
        <ConfirmDialog
          title={`Delete ${removing.name}?`}
          action="Delete"
          onClose={() => setRemoving(null)}
          onConfirm={() => {
            setRemoving(null);
            void act(() => api.delete(route(removing)), `Deleted ${removing.name}`);
          }}
        >
          It starts no more executions. Executions that it has started continue.
        </ConfirmDialog>
      )}
    </>
  );
}

function DeliveryState({ delivery }: { delivery: Delivery }) {
  const status = STATE[delivery.status] ?? delivery.status;
  return (
    <>
      {delivery.execution_id ? (
        <Link to={`/executions/${delivery.execution_id}`}>
          <Time at={delivery.received_at} />
        </Link>
      ) : (
        <Time at={delivery.received_at} />
      )}{" "}
      <span class={`status ${status}`}>
        <i aria-hidden="true" />
        {LABEL[status] && delivery.status === "started" ? LABEL[status] : delivery.status}
      </span>
      {delivery.error && <div class="wrong clip">{delivery.error}</div>}
    </>
  );
}

export function Deliveries() {
  const canEdit = useHasRole("operator");
  const [name, setName] = useQueryValue("name");
  const [status, setStatus] = useQueryValue("status");
  const { value, problem, reload } = useFetch<Page<Delivery>>("/api/deliveries", { name, status, limit: 200 }, 5000);
  const act = actThenReload(reload);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  return (
    <>
      <div class="row spaced">
        <input type="search" placeholder="Name of a trigger" aria-label="Name of a trigger" value={name} onChange={(event) => setName(event.currentTarget.value.trim())} />
        <select aria-label="Status" value={status} onChange={(event) => setStatus(event.currentTarget.value)}>
          <option value="">all</option>
          {["pending", "started", "skipped", "failed"].map((each) => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
        </select>
      </div>
      {!value ? (
        <Loading what="Loading deliveries" />
      ) : !value.items.length ? (
        <EmptyState title="No deliveries">
          <p>What triggers receive is listed here, with the executions that were started.</p>
        </EmptyState>
      ) : (
        <List heads={["Received", "Trigger", "Status", "Execution"]}>
          {value.items.map((each) => (
            <tr key={each.id}>
              <td>
                <Time at={each.received_at} />
              </td>
              <td>
                {each.name} <span class="quiet">{each.kind}</span>
              </td>
              <td>
                <Status status={STATE[each.status] === "success" ? "done" : (STATE[each.status] ?? each.status)} />
                {each.error && <div class="wrong">{each.error}</div>}
              </td>
              <td>{each.execution_id ? <Link to={`/executions/${each.execution_id}`}>{each.execution_id}</Link> : <span class="quiet">–</span>}</td>
              <td class="right">
                {canEdit && (
                  <Button class="small" aria-label={`Replay delivery ${each.id}`} onClick={() => act(() => api.post(`/api/deliveries/${each.id}/replay`), "Started again with the same payload")}>
                    Replay
                  </Button>
                )}
              </td>
            </tr>
          ))}
        </List>
      )}
    </>
  );
}

export function Notifications() {
  const isAdmin = useHasRole("admin");
  const { value, problem, reload } = useFetch<Page<Rule>>("/api/notifications", { limit: 1000 }, 10_000);
  const [editing, setEditing] = useState<Rule | "new" | null>(null);
  const [removing, setRemoving] = useState<string | null>(null);
  const act = actThenReload(reload);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading notifications" />;
  const add = isAdmin && (
    <Button kind="primary" onClick={() => setEditing("new")}>
      Add notification rule
    </Button>
  );
  const route = (name: string) => `/api/notifications/${encodeURIComponent(name)}`;
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No notification rules yet" action={add}>
          <p>A rule sends a message (mail, Slack, HTTP) when executions fail, are late, wait or recover. From a terminal:</p>
          <pre tabIndex={0}>noetl notify add --help</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Messages to people about executions and triggers.">{add}</ListHeader>
          <List heads={["Rule", "On", "To", "Playbooks"]}>
            {value.items.map((each) => (
              <tr key={each.name} class={each.paused ? "paused" : ""}>
                <td>
                  <strong>{each.name}</strong>
                  {each.paused && <div class="quiet">paused</div>}
                </td>
                <td>{each.on.map((word) => word.replace("_", " ")).join(", ")}</td>
                <td>
                  {each.to.kind}
                  <div class="quiet">{each.to.kind === "mail" ? (each.to.to ?? []).join(", ") : (each.to.url ?? each.to.credential)}</div>
                </td>
                <td>{each.paths?.length && each.paths.join() !== "*" ? each.paths.join(", ") : "all"}</td>
                <td class="right actions">
                  {isAdmin && (
                    <>
                      <Button class="small" aria-label={`Test ${each.name}`} onClick={() => act(() => api.post(`${route(each.name)}/test`), "Test message sent")}>
                        Test
                      </Button>{" "}
                      <Button class="small" aria-label={`Edit ${each.name}`} onClick={() => setEditing(each)}>
                        Edit
                      </Button>{" "}
                      <Button class="small" kind="danger" aria-label={`Delete ${each.name}`} onClick={() => setRemoving(each.name)}>
                        Delete
                      </Button>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {editing && (
        <NotificationForm
          known={editing === "new" ? null : editing}
          onClose={() => setEditing(null)}
          onDone={(name) => {
            setEditing(null);
            notify(`Saved ${name}`);
            reload();
          }}
        />
      )}
      {removing && (
        <ConfirmDialog
          title={`Delete ${removing}?`}
          action="Delete"
          onClose={() => setRemoving(null)}
          onConfirm={() => {
            setRemoving(null);
            void act(() => api.delete(route(removing)), `Deleted ${removing}`);
          }}
        >
          Messages that are not sent yet are dropped.
        </ConfirmDialog>
      )}
    </>
  );
}

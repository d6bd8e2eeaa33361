/** Triggers of all kinds: what they received; add, edit, pause, resume, delete. */
import { api, type Page } from "../common/api";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { useFetch } from "../common/fetch";
import { go, Link } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { pagePath } from "../playbooks/playbook";
import { List, ListHeader, RowButton, useEntryDialogs } from "./components";
import { DeliveryStatus, type Delivery } from "./deliveries";
import { OPERATOR_KINDS, TriggerForm, triggerRoute, type TriggerDefinition } from "./trigger_form";

interface Trigger extends TriggerDefinition {
  paused?: boolean;
  problem?: string | null;
  deliveries: Record<string, number>;
  last_delivery: Delivery | null;
}

export function Triggers() {
  const canEdit = useHasRole("operator");
  const isAdmin = useHasRole("admin");
  const { value, problem, reload } = useFetch<Page<Trigger>>("/api/triggers", { limit: 1000 }, 3000);
  const { act, dialogs, ...entries } = useEntryDialogs<Trigger>({
    reload,
    called: (each) => each.name,
    route: (each) => triggerRoute(each.kind, each.name),
    warning: "It starts no more executions. Executions that it has started continue.",
    form: (props) => <TriggerForm {...props} />,
  });
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading triggers" />;
  const add = canEdit && (
    <Button kind="primary" onClick={entries.add}>
      Add trigger
    </Button>
  );
  const mayEdit = (each: Trigger) => canEdit && (isAdmin || OPERATOR_KINDS.has(each.kind));
  const edit = (each: Trigger) => (each.kind === "schedule" ? go(`/operations/schedules?edit=${encodeURIComponent(each.name)}`) : entries.edit(each));
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No triggers yet" action={add}>
          <p>Triggers start playbooks: schedules, webhooks, NATS messages, new objects, custom events, the end of another playbook. From a terminal:</p>
          <pre tabIndex={0}>noetl trigger add reports/publish --after 'reports/*'</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="What starts playbooks without a request of a user.">{add}</ListHeader>
          <List heads={["Trigger", "Kind", "Playbook", "Deliveries", "Last delivery"]}>
            {value.items.map((each) => (
              <tr key={`${each.kind}/${each.name}`} class={each.paused ? "paused" : ""}>
                <td>
                  <strong>{each.name}</strong>
                  {each.paused && <div class="quiet">paused</div>}
                  {each.problem && <div class="wrong">{each.problem}</div>}
                </td>
                <td>{each.kind}</td>
                <td>
                  <Link to={pagePath(each.path)}>{each.path}</Link>
                </td>
                <td class="number">
                  <Link to={`/operations/deliveries?name=${encodeURIComponent(each.name)}`}>
                    {Object.entries(each.deliveries)
                      .map(([status, count]) => `${count} ${status}`)
                      .join(", ") || "none"}
                  </Link>
                </td>
                <td>{each.last_delivery ? <LastDelivery delivery={each.last_delivery} /> : <span class="quiet">–</span>}</td>
                <td class="right actions">
                  {canEdit && (
                    <RowButton
                      action={each.paused ? "Resume" : "Pause"}
                      name={each.name}
                      onClick={() => act(() => api.post(`${triggerRoute(each.kind, each.name)}/${each.paused ? "resume" : "pause"}`), `${each.paused ? "Resumed" : "Paused"} ${each.name}`)}
                    />
                  )}{" "}
                  {mayEdit(each) && (
                    <>
                      <RowButton action="Edit" name={each.name} onClick={() => edit(each)} /> <RowButton action="Delete" name={each.name} kind="danger" onClick={() => entries.remove(each)} />
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {dialogs}
    </>
  );
}

function LastDelivery({ delivery }: { delivery: Delivery }) {
  const time = <Time at={delivery.received_at} />;
  return (
    <>
      {delivery.execution_id ? <Link to={`/executions/${delivery.execution_id}`}>{time}</Link> : time} <DeliveryStatus status={delivery.status} />
      {delivery.error && <div class="wrong clip">{delivery.error}</div>}
    </>
  );
}

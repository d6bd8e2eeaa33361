/** Deliveries: what triggers received, with its payload and the execution that it started; replay. */
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { EmptyState, ErrorState, Loading } from "../common/components";
import { useFetch } from "../common/fetch";
import { Link, useQueryValue } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { JsonTree } from "../execution/json";
import { actThenReload, DetailRow, List, RowButton } from "./components";

export interface Delivery {
  id: string;
  kind: string;
  name: string;
  status: string;
  received_at: string;
  due: string | null;
  execution_id: string | null;
  error: string | null;
}

const COLOURS: Record<string, string> = { started: "success", sent: "success" };
const HEADS = ["Received", "Trigger", "Status", "Execution"];

/** The status of a delivery or message, in the colours of executions. */
export function DeliveryStatus({ status }: { status: string }) {
  return (
    <span class={`status ${COLOURS[status] ?? status}`}>
      <i aria-hidden="true" />
      {status}
    </span>
  );
}

export function Deliveries() {
  const canEdit = useHasRole("operator");
  const [name, setName] = useQueryValue("name");
  const [status, setStatus] = useQueryValue("status");
  const [open, setOpen] = useState<string | null>(null);
  const { value, problem, reload } = useFetch<Page<Delivery>>("/api/deliveries", { name, status, limit: 200 }, 3000);
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
          <p>What triggers receive is listed here, with the executions that were started. From a terminal:</p>
          <pre tabIndex={0}>noetl trigger deliveries</pre>
        </EmptyState>
      ) : (
        <List heads={HEADS}>
          {value.items.map((each) => (
            <Fragment key={each.id}>
              <tr>
                <td>
                  <Time at={each.received_at} />
                </td>
                <td>
                  {each.name} <span class="quiet">{each.kind}</span>
                </td>
                <td>
                  <DeliveryStatus status={each.status} />
                  {each.error && <div class="wrong">{each.error}</div>}
                </td>
                <td>{each.execution_id ? <Link to={`/executions/${each.execution_id}`}>{each.execution_id}</Link> : <span class="quiet">–</span>}</td>
                <td class="right actions">
                  <RowButton action={open === each.id ? "Hide" : "Show"} name={`delivery ${each.id}`} onClick={() => setOpen(open === each.id ? null : each.id)} />{" "}
                  {canEdit && <RowButton action="Replay" name={`delivery ${each.id}`} onClick={() => act(() => api.post(`/api/deliveries/${each.id}/replay`), "Started again with the same payload")} />}
                </td>
              </tr>
              {open === each.id && (
                <DetailRow columns={HEADS.length}>
                  <Received id={each.id} />
                </DetailRow>
              )}
            </Fragment>
          ))}
        </List>
      )}
    </>
  );
}

function Received({ id }: { id: string }) {
  const { value, problem } = useFetch<Record<string, unknown>>(`/api/deliveries/${id}`);
  if (problem) return <p class="wrong">{problem.message}</p>;
  return value ? <JsonTree value={value} open={3} /> : <Loading what="Loading delivery" />;
}

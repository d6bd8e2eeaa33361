/** Backfills: one execution for each slot of a time range, with progress. */
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading, notify, Status } from "../common/components";
import { Link, useQueryValue } from "../common/router";
import { useHasRole } from "../common/session";
import { duration, Time } from "../common/times";
import { actThenReload, FormDialog, List, ListHeader, NameCell, PayloadField, PlaybookField, readMapping, RowButton, TextField } from "./components";

interface Slot {
  start: string;
  date: string;
  index: number;
  execution_id: string | null;
  error?: string | null;
}

interface Backfill {
  name: string;
  path: string;
  version: number | null;
  from: string;
  to: string;
  every_s: number;
  concurrency: number;
  status: string;
  total: number;
  running: number;
  succeeded: number;
  failed: number;
  waiting: number;
  failures: Slot[];
  created_at: string;
}

const STATUS: Record<string, string> = { done: "success", running: "running", paused: "paused", cancelled: "cancelled", failed: "failed" };

export function Backfills() {
  const { value, problem, reload } = useFetch<Page<Backfill>>("/api/backfills", { limit: 500 }, 3000);
  const [given, setGiven] = useQueryValue("path");
  const [adding, setAdding] = useState(!!given);
  const canEdit = useHasRole("operator");
  const act = actThenReload(reload);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading backfills" />;
  const add = canEdit && (
    <Button kind="primary" onClick={() => setAdding(true)}>
      Start backfill
    </Button>
  );
  const close = () => {
    setAdding(false);
    if (given) setGiven("");
  };
  const post = (each: Backfill, what: string, words: string) => act(() => api.post(`/api/backfills/${encodeURIComponent(each.name)}/${what}`), `${words} ${each.name}`);
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No backfills yet" action={add}>
          <p>A backfill runs a playbook once for each slot of a time range, for example for every day of last month. From a terminal:</p>
          <pre tabIndex={0}>noetl backfill reports/daily --from 2026-10-01 --to 2026-11-01 --every 1d</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Each slot starts one execution, whose workload has the slot.">{add}</ListHeader>
          <List heads={["Backfill", "Range", "Status", "Progress", "Failed"]}>
            {value.items.map((each) => (
              <tr key={each.name}>
                <NameCell name={each.name} path={each.path} version={each.version} />
                <td>
                  {each.from.slice(0, 16).replace("T", " ")} – {each.to.slice(0, 16).replace("T", " ")}
                  <div class="quiet">
                    every {duration(each.every_s * 1000)}, {each.concurrency} at a time
                  </div>
                </td>
                <td>
                  <Status status={STATUS[each.status] ?? each.status} />
                  <div class="quiet">
                    <Time at={each.created_at} />
                  </div>
                </td>
                <td>
                  <progress max={each.total} value={each.succeeded + each.failed} aria-label={`Progress of ${each.name}`} />
                  <div class="quiet number">
                    <Link to={`/executions?trigger=${encodeURIComponent(`backfill ${each.name}`)}`}>
                      {each.succeeded + each.failed} of {each.total}
                    </Link>
                    {each.running ? `, ${each.running} running` : ""}
                  </div>
                </td>
                <td class="number">
                  {each.failed || <span class="quiet">0</span>}
                  {each.failures.slice(0, 3).map((slot) => (
                    <div key={slot.index}>
                      {slot.execution_id ? <Link to={`/executions/${slot.execution_id}`}>{slot.date}</Link> : <span title={slot.error ?? undefined}>{slot.date}</span>}
                    </div>
                  ))}
                </td>
                <td class="right actions">
                  {canEdit && each.status === "running" && (
                    <RowButton action="Pause" name={each.name} onClick={() => post(each, "pause", "Paused")} />
                  )}{" "}
                  {canEdit && each.status === "paused" && (
                    <RowButton action="Resume" name={each.name} onClick={() => post(each, "resume", "Resumed")} />
                  )}{" "}
                  {canEdit && each.failed > 0 && (
                    <Button class="small" aria-label={`Retry failed slots of ${each.name}`} onClick={() => post(each, "retry", "Retrying failed slots of")}>
                      Retry failed
                    </Button>
                  )}{" "}
                  {canEdit && (each.status === "running" || each.status === "paused") && (
                    <RowButton action="Cancel" name={each.name} kind="danger" onClick={() => post(each, "cancel", "Cancelled")} />
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {adding && (
        <Add
          path={given}
          onClose={close}
          onDone={(name) => {
            close();
            notify(`Started backfill ${name}`);
            reload();
          }}
        />
      )}
    </>
  );
}

const day = (back: number) => new Date(Date.now() - back * 86_400_000).toISOString().slice(0, 10);

function Add({ path: begun, onClose, onDone }: { path: string; onClose: () => void; onDone: (name: string) => void }) {
  const [path, setPath] = useState(begun);
  const [from, setFrom] = useState(day(7));
  const [to, setTo] = useState(day(0));
  const [every, setEvery] = useState("1d");
  const [variable, setVariable] = useState("slot");
  const [concurrency, setConcurrency] = useState("1");
  const [payload, setPayload] = useState("");
  const save = async () => {
    if (!path.trim()) return "Enter the path of a playbook.";
    if (!/^\d+$/.test(concurrency)) return "The number of executions at a time is a whole number.";
    const given = await readMapping("Payload", payload);
    if (typeof given === "string") return given;
    const body = { path: path.trim(), from: from.trim(), to: to.trim(), every: every.trim(), as: variable.trim() || "slot", concurrency: Number(concurrency), payload: given };
    onDone((await api.post<Backfill>("/api/backfills", body)).name);
  };
  return (
    <FormDialog id="backfill-form" title="Start backfill" action="Start" onClose={onClose} onSave={save}>
      <div class="pair">
        <PlaybookField id="backfill-path" value={path} onInput={setPath} />
        <TextField id="backfill-as" label="Key of the workload" hint="has the slot" value={variable} onInput={setVariable} />
      </div>
      <div class="pair">
        <TextField id="backfill-from" label="From" hint="inclusive" value={from} onInput={setFrom} />
        <TextField id="backfill-to" label="To" hint="exclusive" value={to} onInput={setTo} />
      </div>
      <div class="pair">
        <TextField id="backfill-every" label="Every" hint="1h, 1d, 7d" value={every} onInput={setEvery} />
        <TextField id="backfill-concurrency" label="At a time" hint="executions" value={concurrency} onInput={setConcurrency} />
      </div>
      <PayloadField id="backfill-payload" value={payload} onInput={setPayload} />
    </FormDialog>
  );
}

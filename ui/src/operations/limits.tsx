/** Concurrency limits: usage, holders and waiting runs; set, change, delete. */
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { Link } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { Choice, FormDialog, List, ListHeader, RowButton, TextField, useEntryDialogs, type FormProps } from "./components";

interface Limit {
  subject: string;
  name: string;
  most: number | null;
  weight: number;
  max_waiting?: number | null;
  queued?: number;
  held: number;
  waiting: number;
  waiting_since: string | null;
  holders: { execution_id: string; path: string; held: number }[];
}

const SUBJECTS: Record<string, string> = {
  credential: "runs with a credential",
  label: "runs with a label",
  playbook: "executions of a playbook",
  pool: "runs of a pool",
};
const route = (subject: string, name: string) => `/api/limits/${subject}/${name.split("/").map(encodeURIComponent).join("/")}`;
const called = (limit: Limit) => `the limit for ${limit.subject} ${limit.name}`;

export function Limits() {
  const { value, problem, reload } = useFetch<Page<Limit>>("/api/limits", { limit: 500 }, 3000);
  const canEdit = useHasRole("operator");
  const { dialogs, ...entries } = useEntryDialogs<Limit>({
    reload,
    called,
    route: (limit) => route(limit.subject, limit.name),
    warning: "Waiting runs can start.",
    form: (props) => <LimitForm {...props} />,
  });
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading limits" />;
  const add = canEdit && (
    <Button kind="primary" onClick={entries.add}>
      Add limit
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No limits yet" action={add}>
          <p>A limit restricts how many runs or executions are active at the same time, on all workers together. The others wait. From a terminal:</p>
          <pre tabIndex={0}>noetl limit set credential pg_main 5</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Limits apply to the whole installation. Lowering a limit does not affect runs that are already active.">{add}</ListHeader>
          <List heads={["Limit", "Maximum", "In use", "Waiting"]}>
            {value.items.map((each) => (
              <tr key={called(each)}>
                <td>
                  <strong>{each.name}</strong>
                  <div class="quiet">{SUBJECTS[each.subject] ?? each.subject}</div>
                </td>
                <td class="number">
                  {each.most ?? "unlimited"}
                  {each.weight > 1 && <div class="quiet">weight {each.weight}</div>}
                </td>
                <td>
                  <span class="number">{each.held}</span>
                  {each.holders.map((holder) => (
                    <div key={holder.execution_id}>
                      <Link to={`/executions/${holder.execution_id}`}>{holder.path}</Link>
                      {holder.held > 1 && <span class="quiet number"> {holder.held}</span>}
                    </div>
                  ))}
                </td>
                <td>
                  <span class="number">{each.waiting}</span>
                  {each.queued !== undefined && (
                    <div class="quiet">
                      {each.queued} queued{each.max_waiting != null && `, at most ${each.max_waiting}`}
                    </div>
                  )}
                  {each.waiting_since && (
                    <div class="quiet">
                      since <Time at={each.waiting_since} />
                    </div>
                  )}
                </td>
                <td class="right">
                  {canEdit && (
                    <>
                      <RowButton action="Edit" name={called(each)} onClick={() => entries.edit(each)} /> <RowButton action="Delete" name={called(each)} kind="danger" onClick={() => entries.remove(each)} />
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

function LimitForm({ known, onClose, onDone }: FormProps<Limit>) {
  const [subject, setSubject] = useState(known?.subject ?? "credential");
  const [name, setName] = useState(known?.name ?? "");
  const [most, setMost] = useState(known?.most?.toString() ?? "");
  const [weight, setWeight] = useState(known && known.weight > 1 ? known.weight.toString() : "");
  const [maxWaiting, setMaxWaiting] = useState(known?.max_waiting?.toString() ?? "");
  const labelled = subject === "label";
  const weighed = subject === "playbook" || labelled;
  const save = async () => {
    if (!name.trim()) return "Enter a name.";
    const body: Record<string, number> = {};
    for (const [key, text] of [["most", most], ["weight", weighed ? weight : ""], ["max_waiting", labelled ? maxWaiting : ""]]) {
      if (!text.trim()) continue;
      if (!/^\d+$/.test(text.trim())) return `${text.trim()} is not an integer.`;
      body[key] = Number(text);
    }
    if (!Object.keys(body).length) return weighed ? "Enter a maximum or a weight." : "Enter a maximum.";
    await api.put(route(subject, name.trim()), body);
    onDone(`Saved the limit for ${subject} ${name.trim()}`);
  };
  return (
    <FormDialog id="limit-form" title={known ? `Edit ${called(known)}` : "Add limit"} action="Save" onClose={onClose} onSave={save}>
      {!known && (
        <div class="pair">
          <Choice id="limit-subject" label="Applies to" value={subject} onChange={setSubject} choices={SUBJECTS} />
          <TextField id="limit-name" label="Name" hint={labelled ? "tenant=acme" : weighed ? "path" : undefined} value={name} onInput={setName} />
        </div>
      )}
      <div class="pair">
        <TextField id="limit-most" label="Maximum" hint="0 blocks all" value={most} onInput={setMost} />
        {weighed && <TextField id="limit-weight" label="Weight" hint="share relative to others" value={weight} onInput={setWeight} />}
        {labelled && <TextField id="limit-max-waiting" label="Maximum queued" hint="further requests are refused" value={maxWaiting} onInput={setMaxWaiting} />}
      </div>
    </FormDialog>
  );
}

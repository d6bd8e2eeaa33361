/** At most so many at once: what is held, by whom, who waits; set, change, remove. */
import { useState } from "preact/hooks";
import { api, type Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, EmptyState, ErrorState, Loading, note } from "../frame/pieces";
import { Link } from "../frame/router";
import { useMay } from "../frame/session";
import { Time } from "../frame/times";
import { Above, Choice, deedThen, FormDialog, List, Sure, TextField } from "./pieces";

interface Limit {
  subject: string;
  name: string;
  most: number | null;
  weight: number;
  held: number;
  waiting: number;
  waiting_since: string | null;
  holders: { execution_id: string; path: string; held: number }[];
}

const SUBJECTS: Record<string, string> = {
  credential: "runs with a credential",
  playbook: "executions of a playbook",
  pool: "runs of a pool",
};
const route = (subject: string, name: string) => `/api/limits/${subject}/${name.split("/").map(encodeURIComponent).join("/")}`;
const called = (limit: Limit) => `${limit.subject} ${limit.name}`;

export function Limits() {
  const { value, problem, again } = useFetched<Page<Limit>>("/api/limits", { limit: 500 }, 3000);
  const [writing, setWriting] = useState<Limit | "new" | null>(null);
  const [leaving, setLeaving] = useState<Limit | null>(null);
  const mayAct = useMay("operator");
  if (problem && !value) return <ErrorState problem={problem} retry={again} />;
  if (!value) return <Loading what="Reading limits" />;
  const act = deedThen(again);
  const remove = (limit: Limit) => {
    setLeaving(null);
    void act(() => api.delete(route(limit.subject, limit.name)), `Removed the limit of ${called(limit)}`);
  };
  const add = mayAct && (
    <Button kind="primary" onClick={() => setWriting("new")}>
      Set a limit
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No limits yet" action={add}>
          <p>A limit lets at most so many run at once, whatever the number of workers; the others wait in line. From a terminal:</p>
          <pre tabIndex={0}>noetl limit set credential pg_main 5</pre>
        </EmptyState>
      ) : (
        <>
          <Above words="Limits hold for the whole installation. Lowering one takes nothing away from who holds it.">{add}</Above>
          <List heads={["Limit", "At once", "Held", "Waiting"]}>
            {value.items.map((each) => (
              <tr key={called(each)}>
                <td>
                  <strong>{each.name}</strong>
                  <div class="quiet">{SUBJECTS[each.subject] ?? each.subject}</div>
                </td>
                <td class="number">
                  {each.most ?? "any number"}
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
                  {each.waiting_since && (
                    <div class="quiet">
                      since <Time at={each.waiting_since} />
                    </div>
                  )}
                </td>
                <td class="right">
                  {mayAct && (
                    <>
                      <Button class="small" aria-label={`Change ${called(each)}`} onClick={() => setWriting(each)}>
                        Change
                      </Button>{" "}
                      <Button class="small" kind="danger" aria-label={`Remove ${called(each)}`} onClick={() => setLeaving(each)}>
                        Remove
                      </Button>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {writing && (
        <Write
          begun={writing === "new" ? null : writing}
          onClose={() => setWriting(null)}
          onDone={(limit) => {
            setWriting(null);
            note(`Set the limit of ${called(limit)}`);
            again();
          }}
        />
      )}
      {leaving && (
        <Sure title={`Remove the limit of ${called(leaving)}?`} action="Remove it" onClose={() => setLeaving(null)} onYes={() => remove(leaving)}>
          Who waits for it goes on.
        </Sure>
      )}
    </>
  );
}

function Write({ begun, onClose, onDone }: { begun: Limit | null; onClose: () => void; onDone: (limit: Limit) => void }) {
  const [subject, setSubject] = useState(begun?.subject ?? "credential");
  const [name, setName] = useState(begun?.name ?? "");
  const [most, setMost] = useState(begun?.most?.toString() ?? "");
  const [weight, setWeight] = useState(begun && begun.weight > 1 ? begun.weight.toString() : "");
  const weighed = subject === "playbook";
  const save = async () => {
    if (!name.trim()) return "Say what is limited.";
    const body: Record<string, number> = {};
    for (const [key, text] of [["most", most], ["weight", weighed ? weight : ""]]) {
      if (!text.trim()) continue;
      if (!/^\d+$/.test(text.trim())) return `${text.trim()} is no whole number.`;
      body[key] = Number(text);
    }
    if (!Object.keys(body).length) return weighed ? "Say how many at once, or how much weight." : "Say how many at once.";
    onDone(await api.put<Limit>(route(subject, name.trim()), body));
  };
  return (
    <FormDialog id="limit-form" title={begun ? `Limit of ${called(begun)}` : "Set a limit"} action="Set it" onClose={onClose} onSave={save}>
      {!begun && (
        <div class="pair">
          <Choice id="limit-subject" label="Of" value={subject} onChange={setSubject} choices={SUBJECTS} />
          <TextField id="limit-name" label="Name" hint={weighed ? "its path" : undefined} value={name} onInput={setName} />
        </div>
      )}
      <div class="pair">
        <TextField id="limit-most" label="At once, at most" hint="0 holds all back" value={most} onInput={setMost} />
        {weighed && <TextField id="limit-weight" label="Weight" hint="turns where others get one" value={weight} onInput={setWeight} />}
      </div>
    </FormDialog>
  );
}

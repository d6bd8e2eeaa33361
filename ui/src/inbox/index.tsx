/** The inbox: waits that people answer, each with its form. */
import { useState } from "preact/hooks";
import { api, once, type Page } from "../common/api";
import { Button, EmptyState, ErrorState, Loading, notify, notifyProblem } from "../common/components";
import { copyText } from "../common/copy";
import { useFetch } from "../common/fetch";
import { Link } from "../common/router";
import { useHasRole } from "../common/session";
import { duration, Time, useNow } from "../common/times";

interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  properties?: Record<string, Schema>;
  required?: string[];
}

export interface Entry {
  execution_id: string;
  path: string;
  step: string;
  task: string;
  key: string;
  signal: string;
  title: string;
  form: Schema | null;
  roles: string[];
  since: string;
  due: string | null;
  may_answer: boolean;
}

export function Inbox() {
  const { value, problem, reload } = useFetch<Page<Entry>>("/api/inbox", {}, 3000);
  if (problem?.status === 404) return <EmptyState title="This server has no inbox" />;
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Inbox</h1>
        {value && <span class="quiet number">{value.items.length} waiting</span>}
      </div>
      {!value && <Loading what="Loading inbox" />}
      {value && !value.items.length && (
        <EmptyState title="Nothing waits for an answer">
          <p>
            A task of kind <code>wait</code> with a <code>signal</code> appears here until it is answered.
          </p>
        </EmptyState>
      )}
      <div class="inbox">
        {value?.items.map((each) => <EntryView key={`${each.execution_id} ${each.key}`} entry={each} done={reload} />)}
      </div>
    </>
  );
}

const kindOf = (schema: Schema) => (Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type) ?? "string";

function EntryView({ entry, done }: { entry: Entry; done: () => void }) {
  const now = useNow(true, 10_000);
  const fields = Object.entries(entry.form?.properties ?? {});
  const required = new Set(entry.form?.required ?? []);
  const [given, setGiven] = useState<Record<string, string | boolean>>(() =>
    Object.fromEntries(fields.map(([name, schema]) => [name, kindOf(schema) === "boolean" ? schema.default === true : schema.default === undefined ? "" : String(schema.default)])),
  );
  const [wrong, setWrong] = useState("");
  const [busy, setBusy] = useState(false);
  const [key] = useState(once);
  const canLink = useHasRole("operator");
  const send = async (extra: Record<string, unknown> = {}) => {
    setBusy(true);
    setWrong("");
    try {
      const payload = { ...values(fields, given, required), ...extra };
      await api.post(`/api/executions/${entry.execution_id}/signal`, { name: entry.signal, wait: entry.key, payload }, key);
      notify("Answer sent");
      done();
    } catch (error) {
      setWrong(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  const link = async () => {
    try {
      const made = await api.post<{ url: string }>("/api/inbox/links", { execution_id: entry.execution_id, wait: entry.key });
      await copyText(made.url, "a link that answers this once");
    } catch (error) {
      notifyProblem(error);
    }
  };
  const id = (name: string) => `answer-${entry.execution_id}-${entry.key}-${name}`.replace(/[^\w-]/g, "_");
  const decision = fields.find(([, schema]) => kindOf(schema) === "boolean")?.[0];
  return (
    <form
      class="card inbox-entry"
      aria-label={entry.title || entry.task}
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <h2>{entry.title || `${entry.path}: ${entry.task}`}</h2>
      <p class="quiet">
        <Link to={`/executions/${entry.execution_id}?step=${entry.step}`}>{entry.path}</Link> · step {entry.step} · waits for {duration(Math.max(0, now - Date.parse(entry.since)))}
        {entry.due && (
          <>
            {" "}
            · until <Time at={entry.due} />
          </>
        )}
      </p>
      {fields.map(([name, schema]) =>
        name === decision && fields.length > 0 ? null : (
          <div key={name} class="form-field">
            <label for={id(name)}>
              {schema.title ?? name}
              {required.has(name) && <span class="badge">required</span>}
            </label>
            {schema.enum ? (
              <select id={id(name)} value={String(given[name])} disabled={!entry.may_answer} onChange={(event) => setGiven({ ...given, [name]: event.currentTarget.value })}>
                <option value="" />
                {schema.enum.map((each) => (
                  <option key={String(each)} value={String(each)}>
                    {String(each)}
                  </option>
                ))}
              </select>
            ) : kindOf(schema) === "boolean" ? (
              <input id={id(name)} type="checkbox" role="switch" disabled={!entry.may_answer} checked={given[name] === true} onChange={(event) => setGiven({ ...given, [name]: event.currentTarget.checked })} />
            ) : (
              <input id={id(name)} type="text" inputMode={kindOf(schema) === "string" ? undefined : "decimal"} disabled={!entry.may_answer} value={String(given[name])} onInput={(event) => setGiven({ ...given, [name]: event.currentTarget.value })} />
            )}
            {schema.description && <div class="quiet">{schema.description}</div>}
          </div>
        ),
      )}
      {wrong && (
        <p class="wrong" role="alert">
          {wrong}
        </p>
      )}
      {entry.may_answer ? (
        <div class="row">
          {decision ? (
            <>
              <Button kind="primary" disabled={busy} onClick={() => send({ [decision]: true })}>
                {decision === "approved" ? "Approve" : `Yes: ${decision}`}
              </Button>
              <Button kind="danger" disabled={busy} onClick={() => send({ [decision]: false })}>
                {decision === "approved" ? "Reject" : "No"}
              </Button>
            </>
          ) : (
            <Button kind="primary" type="submit" disabled={busy}>
              Answer
            </Button>
          )}
          {canLink && (
            <Button class="small" onClick={link}>
              Copy link
            </Button>
          )}
        </div>
      ) : (
        <p class="quiet">Answering requires the role {entry.roles.join(" or ")}.</p>
      )}
    </form>
  );
}

/** The data of the form: typed, without empty optional fields. */
function values(fields: [string, Schema][], given: Record<string, string | boolean>, required: Set<string>): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const [name, schema] of fields) {
    const value = given[name];
    if (value === "" && !required.has(name)) continue;
    const kind = kindOf(schema);
    if (schema.enum) found[name] = schema.enum.find((each) => String(each) === value) ?? value;
    else if (kind === "integer" || kind === "number") found[name] = value === "" ? null : Number.isNaN(Number(value)) ? value : Number(value);
    else if (kind === "object" || kind === "array") {
      try {
        found[name] = JSON.parse(String(value));
      } catch {
        throw new Error(`${name} must be JSON`);
      }
    } else found[name] = value;
  }
  return found;
}

/** Registered schemas with the text of every version; register, new version. */
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { Button, EmptyState, ErrorState, Loading, notify } from "../common/components";
import { useFetch } from "../common/fetch";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { JsonTree } from "../execution/json";
import { Choice, DetailRow, FormDialog, List, ListHeader, PayloadField, readMapping, RowButton, TextField } from "./components";

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

const HEADS = ["Schema", "Version", "Compatible", "Registered"];
const route = (name: string) => `/api/schemas/${name.split("/").map(encodeURIComponent).join("/")}`;

export function Schemas() {
  const { value, problem, reload } = useFetch<Page<Schema>>("/api/schemas", { limit: 1000 }, 3000);
  const [open, setOpen] = useState<string | null>(null);
  const [writing, setWriting] = useState<Schema | "new" | null>(null);
  const canEdit = useHasRole("author");
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading schemas" />;
  const add = canEdit && (
    <Button kind="primary" onClick={() => setWriting("new")}>
      Register schema
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No schemas yet" action={add}>
          <p>
            A schema describes results; tasks and steps name it under <code>spec.validation</code>. From a terminal:
          </p>
          <pre tabIndex={0}>noetl schema register orders orders.json</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="The newest version of each schema.">{add}</ListHeader>
          <List heads={HEADS}>
            {value.items.map((each) => (
              <Fragment key={each.name}>
                <tr>
                  <td>
                    <strong>{each.name}</strong>
                  </td>
                  <td class="number">v{each.version}</td>
                  <td>{each.compatible ?? "–"}</td>
                  <td>
                    <Time at={typeof each.registered_at === "number" ? each.registered_at * 1000 : each.registered_at} />
                  </td>
                  <td class="right actions">
                    <RowButton action={open === each.name ? "Hide" : "Show"} name={each.name} onClick={() => setOpen(open === each.name ? null : each.name)} />{" "}
                    {canEdit && <RowButton action="New version" name={`of ${each.name}`} onClick={() => setWriting(each)} />}
                  </td>
                </tr>
                {open === each.name && (
                  <DetailRow columns={HEADS.length}>
                    <Versions key={each.version} newest={each} />
                  </DetailRow>
                )}
              </Fragment>
            ))}
          </List>
        </>
      )}
      {writing && (
        <SchemaForm
          known={writing === "new" ? null : writing}
          onClose={() => setWriting(null)}
          onDone={(words) => {
            setWriting(null);
            notify(words);
            reload();
          }}
        />
      )}
    </>
  );
}

function Versions({ newest }: { newest: Schema }) {
  const [version, setVersion] = useState(newest.version);
  const { value, problem } = useFetch<Schema & { versions: number[] }>(`${route(newest.name)}/v${version}`);
  if (problem) return <p class="wrong">{problem.message}</p>;
  return (
    <>
      {value && value.versions.length > 1 && (
        <div class="chips" role="group" aria-label={`Versions of ${newest.name}`}>
          {value.versions.map((each) => (
            <button key={each} type="button" class="chip" aria-pressed={each === version} onClick={() => setVersion(each)}>
              v{each}
            </button>
          ))}
        </div>
      )}
      {value ? <JsonTree value={value.schema ?? value.json_schema} open={4} /> : <Loading what="Loading schema" />}
    </>
  );
}

const COMPATIBLE: Record<string, string> = { backward: "accepts what the last version accepts", none: "not checked" };

function SchemaForm({ known, onClose, onDone }: { known: Schema | null; onClose: () => void; onDone: (words: string) => void }) {
  const [name, setName] = useState(known?.name ?? "");
  const [text, setText] = useState(() => JSON.stringify(known?.schema ?? known?.json_schema ?? { type: "object", properties: {}, required: [] }, null, 2));
  const [compatible, setCompatible] = useState("backward");
  const save = async () => {
    if (!name.trim()) return "Enter a name.";
    const schema = await readMapping("The schema", text);
    if (typeof schema === "string") return schema;
    const saved = await api.put<Schema>(route(name.trim()), { json_schema: schema, compatible });
    onDone(`Registered ${saved.name} v${saved.version}`);
  };
  return (
    <FormDialog id="schema-form" title={known ? `New version of ${known.name}` : "Register schema"} action="Register" onClose={onClose} onSave={save}>
      <div class="pair">
        <TextField id="schema-name" label="Name" value={name} disabled={!!known} onInput={setName} />
        <Choice id="schema-compatible" label="Compatibility" value={compatible} onChange={setCompatible} choices={COMPATIBLE} />
      </div>
      <PayloadField id="schema-text" label="JSON Schema" hint="YAML or JSON" value={text} onInput={setText} />
    </FormDialog>
  );
}

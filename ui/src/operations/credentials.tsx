/** Credentials of this installation: written here, never read back; the page knows names and types alone. */
import { useState } from "preact/hooks";
import { api, type Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, EmptyState, ErrorState, Loading, note } from "../frame/pieces";
import { Above, deedThen, FormDialog, List, Sure, TextField } from "./pieces";

interface Credential {
  name: string;
  type: string;
}

/** Fields one usually needs, by type; any other may be added. */
const USUAL: Record<string, string[]> = {
  generic: ["value"],
  postgres: ["host", "port", "database", "user", "password"],
  bearer: ["token"],
  basic: ["username", "password"],
  api_key: ["key"],
  s3: ["access_key_id", "secret_access_key", "region", "endpoint"],
  nats: ["url", "user", "password"],
};

/** Fields that are no secrets: what is typed may be seen while it is typed. */
const PLAIN = /^((db|nats)_)?(host|port|database|dbname|name|user|username|url|region|endpoint|schema)$/;

export function Credentials() {
  const { value, problem, again } = useFetched<Page<Credential>>("/api/credentials");
  const [writing, setWriting] = useState<Credential | null>(null);
  const [leaving, setLeaving] = useState<string | null>(null);
  if (problem) return <ErrorState problem={problem} retry={again} />;
  if (!value) return <Loading what="Reading names" />;
  const act = deedThen(again);
  const forget = (name: string) => {
    setLeaving(null);
    void act(() => api.delete(`/api/credentials/${encodeURIComponent(name)}`), `Forgot ${name}`);
  };
  const add = (
    <Button kind="primary" onClick={() => setWriting({ name: "", type: "generic" })}>
      Add credential
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No credentials yet" action={add}>
          <p>
            Playbooks name secrets in <code>keychain</code> or <code>auth</code>; their values live here, encrypted. Nobody can
            read them back, not even here. From a terminal:
          </p>
          <pre tabIndex={0}>noetl credential set shop_db --type postgres --data @shop_db.json</pre>
        </EmptyState>
      ) : (
        <>
          <Above words="Values are encrypted and write-only: to change one, write it again.">{add}</Above>
          <List heads={["Name", "Type"]}>
            {value.items.map((each) => (
              <tr key={each.name}>
                <td class="mono">{each.name}</td>
                <td>{each.type}</td>
                <td class="right">
                  <Button class="small" onClick={() => setWriting(each)} aria-label={`Replace ${each.name}`}>
                    Replace
                  </Button>{" "}
                  <Button class="small" kind="danger" onClick={() => setLeaving(each.name)} aria-label={`Forget ${each.name}`}>
                    Forget
                  </Button>
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {writing && (
        <Write
          begun={writing}
          onClose={() => setWriting(null)}
          onDone={(name) => {
            setWriting(null);
            note(`Keeping ${name}`);
            again();
          }}
        />
      )}
      {leaving && (
        <Sure title={`Forget ${leaving}?`} action="Forget it" onClose={() => setLeaving(null)} onYes={() => forget(leaving)}>
          Playbooks that name it will not start any more. Executions that run keep what they were given.
        </Sure>
      )}
    </>
  );
}

interface Row {
  key: string;
  value: string;
}

const rowsFor = (type: string): Row[] => (USUAL[type] ?? USUAL.generic).map((key) => ({ key, value: "" }));

function Write({ begun, onClose, onDone }: { begun: Credential; onClose: () => void; onDone: (name: string) => void }) {
  const [name, setName] = useState(begun.name);
  const [type, setType] = useState(begun.type);
  const [rows, setRows] = useState<Row[]>(rowsFor(begun.type));
  const given = rows.filter((row) => row.key.trim() && row.value !== "");
  const change = (index: number, changes: Partial<Row>) => setRows((all) => all.map((row, at) => (at === index ? { ...row, ...changes } : row)));

  const save = async () => {
    if (!/^[A-Za-z_][A-Za-z0-9_.-]{0,199}$/.test(name)) return "A name begins with a letter and has letters, digits, dots, dashes and underscores.";
    if (!given.length) return "Fill in at least one field.";
    if (new Set(given.map((row) => row.key.trim())).size < given.length) return "Two fields have the same name.";
    const data = Object.fromEntries(given.map((row) => [row.key.trim(), /^port$/.test(row.key.trim()) && /^\d+$/.test(row.value) ? Number(row.value) : row.value]));
    await api.put(`/api/credentials/${encodeURIComponent(name)}`, { type: type.trim() || "generic", data });
    onDone(name);
  };
  const choose = (chosen: string) => {
    setType(chosen);
    if (USUAL[chosen] && rows.every((row) => !row.value)) setRows(rowsFor(chosen));
  };

  return (
    <FormDialog id="credential-form" title={begun.name ? `Replace ${begun.name}` : "Add a credential"} action="Keep it" onClose={onClose} onSave={save}>
      <div class="pair">
        <TextField id="credential-name" label="Name" value={name} disabled={!!begun.name} onInput={setName} />
        <TextField id="credential-type" label="Type" value={type} offered={Object.keys(USUAL)} onInput={choose} />
      </div>
      <fieldset>
        <legend>Fields</legend>
        {rows.map((row, index) => (
          <div key={index} class="pair field">
            <input type="text" aria-label={`Name of field ${index + 1}`} value={row.key} spellcheck={false} onInput={(event) => change(index, { key: event.currentTarget.value })} />
            <Value row={row} label={`Value of ${row.key || `field ${index + 1}`}`} onInput={(value) => change(index, { value })} />
            <button type="button" class="icon" aria-label={`Remove ${row.key || `field ${index + 1}`}`} onClick={() => setRows((all) => all.filter((_, at) => at !== index))}>
              ×
            </button>
          </div>
        ))}
        <Button class="small" onClick={() => setRows((all) => [...all, { key: "", value: "" }])}>
          Add field
        </Button>
      </fieldset>
      {begun.name && <p class="quiet">All of its fields are replaced: what is left empty is gone.</p>}
    </FormDialog>
  );
}

function Value({ row, label, onInput }: { row: Row; label: string; onInput: (value: string) => void }) {
  const common = { "aria-label": label, value: row.value, onInput: (event: { currentTarget: HTMLInputElement }) => onInput(event.currentTarget.value) };
  return PLAIN.test(row.key) ? <input type="text" autocomplete="off" spellcheck={false} {...common} /> : <input type="password" autocomplete="new-password" {...common} />;
}

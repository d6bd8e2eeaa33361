/** Credentials: the page reads names and types only; values are write-only. */
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { FormDialog, List, ListHeader, RowButton, TextField, useEntryDialogs, type FormProps } from "./components";

interface Credential {
  name: string;
  type: string;
}

/** Default fields by type; others can be added. */
const USUAL: Record<string, string[]> = {
  generic: ["value"],
  postgres: ["host", "port", "database", "user", "password"],
  bearer: ["token"],
  basic: ["username", "password"],
  api_key: ["key"],
  s3: ["access_key_id", "secret_access_key", "region", "endpoint"],
  nats: ["url", "user", "password"],
};

/** Fields that are not secret and are shown while they are typed. */
const PLAIN = /^((db|nats)_)?(host|port|database|dbname|name|user|username|url|region|endpoint|schema)$/;

const route = (name: string) => `/api/credentials/${encodeURIComponent(name)}`;

export function Credentials() {
  const { value, problem, reload } = useFetch<Page<Credential>>("/api/credentials", {}, 3000);
  const { dialogs, ...entries } = useEntryDialogs<Credential>({
    reload,
    called: (each) => each.name,
    route: (each) => route(each.name),
    warning: "Playbooks that use it can no longer start. Running executions are not affected.",
    form: (props) => <CredentialForm {...props} />,
  });
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading credentials" />;
  const add = (
    <Button kind="primary" onClick={entries.add}>
      Add credential
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No credentials yet" action={add}>
          <p>
            Playbooks refer to secrets by name in <code>keychain</code> or <code>auth</code>. Their values are stored encrypted and
            cannot be read back. From a terminal:
          </p>
          <pre tabIndex={0}>noetl credential set shop_db --type postgres --data @shop_db.json</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Values are encrypted and write-only. To change a value, replace the credential.">{add}</ListHeader>
          <List heads={["Name", "Type"]}>
            {value.items.map((each) => (
              <tr key={each.name}>
                <td class="mono">{each.name}</td>
                <td>{each.type}</td>
                <td class="right">
                  <RowButton action="Replace" name={each.name} onClick={() => entries.edit(each)} /> <RowButton action="Delete" name={each.name} kind="danger" onClick={() => entries.remove(each)} />
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

interface Row {
  key: string;
  value: string;
}

const rowsFor = (type: string): Row[] => (USUAL[type] ?? USUAL.generic).map((key) => ({ key, value: "" }));

function CredentialForm({ known, onClose, onDone }: FormProps<Credential>) {
  const [name, setName] = useState(known?.name ?? "");
  const [type, setType] = useState(known?.type ?? "generic");
  const [rows, setRows] = useState<Row[]>(rowsFor(type));
  const given = rows.filter((row) => row.key.trim() && row.value !== "");
  const change = (index: number, changes: Partial<Row>) => setRows((all) => all.map((row, at) => (at === index ? { ...row, ...changes } : row)));

  const save = async () => {
    if (!/^[A-Za-z_][A-Za-z0-9_.-]{0,199}$/.test(name)) return "A name starts with a letter or underscore and contains letters, digits, dots, dashes and underscores.";
    if (!given.length) return "Fill in at least one field.";
    if (new Set(given.map((row) => row.key.trim())).size < given.length) return "Two fields have the same name.";
    const data = Object.fromEntries(given.map((row) => [row.key.trim(), /^port$/.test(row.key.trim()) && /^\d+$/.test(row.value) ? Number(row.value) : row.value]));
    await api.put(route(name), { type: type.trim() || "generic", data });
    onDone(`Saved ${name}`);
  };
  const choose = (chosen: string) => {
    setType(chosen);
    if (USUAL[chosen] && rows.every((row) => !row.value)) setRows(rowsFor(chosen));
  };

  return (
    <FormDialog id="credential-form" title={known ? `Replace ${known.name}` : "Add credential"} action="Save" onClose={onClose} onSave={save}>
      <div class="pair">
        <TextField id="credential-name" label="Name" value={name} disabled={!!known} onInput={setName} />
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
      {known && <p class="quiet">All fields are replaced. Empty fields are removed.</p>}
    </FormDialog>
  );
}

function Value({ row, label, onInput }: { row: Row; label: string; onInput: (value: string) => void }) {
  const common = { "aria-label": label, value: row.value, onInput: (event: { currentTarget: HTMLInputElement }) => onInput(event.currentTarget.value) };
  return PLAIN.test(row.key) ? <input type="text" autocomplete="off" spellcheck={false} {...common} /> : <input type="password" autocomplete="new-password" {...common} />;
}

/** State: values that executions of a playbook share; show, set, reset. */
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading, notify } from "../common/components";
import { Link } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { JsonTree } from "../execution/json";
import { pagePath } from "../playbooks/playbook";
import { actThenReload, ConfirmDialog, DetailRow, FormDialog, List, ListHeader, PayloadField, PlaybookField, readValue, RowButton, TextField } from "./components";

interface StatePath {
  path: string;
  keys: number;
  bytes: number;
}

interface Entry {
  key: string;
  value: unknown;
  version: string;
  updated_at: string;
  execution_id: string | null;
}

/** What a dialog is about: all of a path, or one key of it. */
interface Place {
  path: string;
  key?: string;
  value?: unknown;
  /** The version that a new value replaces; another one is a conflict. */
  version?: string;
}

const HEADS = ["Playbook", "Keys", "Size"];
const route = (path: string) => `/api/state/${path.split("/").map(encodeURIComponent).join("/")}`;
/** Texts that YAML reads as themselves: words without its signs, and no numbers or constants. */
const PLAIN = /^(?!(true|false|null|yes|no|on|off|nan|inf)$)\p{L}[\p{L}\d ._/-]*[\p{L}\d]$/iu;
const asText = (value: unknown) => (typeof value === "string" && PLAIN.test(value) ? value : JSON.stringify(value, null, 2));
const called = ({ path, key }: Place) => (key === undefined ? `the state of ${path}` : `${key} of ${path}`);

export function States() {
  const { value, problem, reload } = useFetch<Page<StatePath>>("/api/state", { limit: 1000 }, 3000);
  const [open, setOpen] = useState<string | null>(null);
  const [setting, setSetting] = useState<Place | null>(null);
  const [resetting, setResetting] = useState<Place | null>(null);
  const [round, setRound] = useState(0);
  const canEdit = useHasRole("operator");
  const refresh = () => {
    reload();
    setRound((count) => count + 1);
  };
  const reset = (place: Place) => {
    setResetting(null);
    void actThenReload(refresh)(() => api.delete(route(place.path) + (place.key === undefined ? "" : `?key=${encodeURIComponent(place.key)}`)), `Reset ${called(place)}`);
  };
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading state" />;
  const add = canEdit && (
    <Button kind="primary" onClick={() => setSetting({ path: "" })}>
      Set value
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No state yet" action={add}>
          <p>
            Values that playbooks set in <code>state</code> are kept between their executions, for example a cursor. From a terminal:
          </p>
          <pre tabIndex={0}>noetl state set loads/orders cursor=2026-01-01</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Values that executions of a playbook share. An execution reads them when it is requested.">{add}</ListHeader>
          <List heads={HEADS}>
            {value.items.map((each) => (
              <Fragment key={each.path}>
                <tr>
                  <td>
                    <Link to={pagePath(each.path)} class="title">
                      {each.path}
                    </Link>
                  </td>
                  <td class="number">{each.keys}</td>
                  <td class="number">{each.bytes.toLocaleString()} B</td>
                  <td class="right actions">
                    <RowButton action={open === each.path ? "Hide" : "Show"} name={`state of ${each.path}`} onClick={() => setOpen(open === each.path ? null : each.path)} />{" "}
                    {canEdit && (
                      <>
                        <RowButton action="Set" name={`state of ${each.path}`} onClick={() => setSetting({ path: each.path })} />{" "}
                        <RowButton action="Reset" name={`state of ${each.path}`} kind="danger" onClick={() => setResetting({ path: each.path })} />
                      </>
                    )}
                  </td>
                </tr>
                {open === each.path && (
                  <DetailRow columns={HEADS.length}>
                    <Entries key={round} path={each.path} onSet={canEdit ? setSetting : null} onReset={setResetting} />
                  </DetailRow>
                )}
              </Fragment>
            ))}
          </List>
        </>
      )}
      {setting && (
        <SetValue
          place={setting}
          onClose={() => setSetting(null)}
          onDone={(place) => {
            setSetting(null);
            setOpen(place.path);
            notify(`Saved ${called(place)}`);
            refresh();
          }}
        />
      )}
      {resetting && (
        <ConfirmDialog title={`Reset ${called(resetting)}?`} action="Reset" onClose={() => setResetting(null)} onConfirm={() => reset(resetting)}>
          The next execution starts without it. This cannot be undone.
        </ConfirmDialog>
      )}
    </>
  );
}

function Entries({ path, onSet, onReset }: { path: string; onSet: ((place: Place) => void) | null; onReset: (place: Place) => void }) {
  const { value, problem } = useFetch<{ entries: Entry[] }>(route(path));
  if (problem) return <p class="wrong">{problem.message}</p>;
  if (!value) return <Loading what="Loading state" />;
  return (
    <dl class="state-entries" aria-label={`State of ${path}`}>
      {value.entries.map((each) => (
        <div key={each.key}>
          <dt class="mono">{each.key}</dt>
          <dd>
            <JsonTree value={each.value} open={1} />
          </dd>
          <dd class="quiet">
            <Time at={each.updated_at} /> {each.execution_id && <Link to={`/executions/${each.execution_id}`}>{each.execution_id}</Link>}
          </dd>
          <dd class="right">
            {onSet && (
              <>
                <RowButton action="Set" name={`${each.key} of ${path}`} onClick={() => onSet({ path, key: each.key, value: each.value, version: each.version })} />{" "}
                <RowButton action="Reset" name={`${each.key} of ${path}`} kind="danger" onClick={() => onReset({ path, key: each.key })} />
              </>
            )}
          </dd>
        </div>
      ))}
    </dl>
  );
}

function SetValue({ place, onClose, onDone }: { place: Place; onClose: () => void; onDone: (place: Place) => void }) {
  const [path, setPath] = useState(place.path);
  const [key, setKey] = useState(place.key ?? "");
  const [text, setText] = useState(() => (place.value === undefined || JSON.stringify(place.value).includes('"***"') ? "" : asText(place.value)));
  const save = async () => {
    if (!path.trim()) return "Enter the path of a playbook.";
    if (!key.trim()) return "Enter a key.";
    const read = await readValue(text);
    if (read.problem) return `Value: ${read.problem}`;
    await api.patch(route(path.trim()), { values: { [key.trim()]: read.value }, ...(place.version && place.key ? { versions: { [place.key]: place.version } } : {}) });
    onDone({ path: path.trim(), key: key.trim() });
  };
  return (
    <FormDialog id="state-form" title={place.path ? `Set state of ${place.path}` : "Set state"} action="Save" onClose={onClose} onSave={save}>
      {!place.path && <PlaybookField id="state-path" value={path} onInput={setPath} />}
      <TextField id="state-key" class="whole" label="Key" hint="or a dotted path" value={key} disabled={place.key !== undefined} onInput={setKey} />
      <PayloadField id="state-value" label="Value" hint="YAML or JSON" value={text} onInput={setText} />
    </FormDialog>
  );
}

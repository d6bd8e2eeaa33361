/** State: values that executions of a playbook share; show, set, reset. */
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { Link } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { JsonTree } from "../execution/json";
import { pagePath } from "../playbooks/playbook";
import { actThenReload, ConfirmDialog, FormDialog, List, PayloadField, readValue, TextField } from "./components";

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

export function States() {
  const { value, problem, reload } = useFetch<Page<StatePath>>("/api/state", { limit: 1000 }, 10_000);
  const [open, setOpen] = useState<string | null>(null);
  const [setting, setSetting] = useState<string | null>(null);
  const [resetting, setResetting] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  const canEdit = useHasRole("operator");
  const refresh = () => {
    reload();
    setRound((count) => count + 1);
  };
  const act = actThenReload(refresh);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading state" />;
  if (!value.items.length) {
    return (
      <EmptyState title="No state">
        <p>
          Values that playbooks set in <code>state</code> are kept between their executions, for example a cursor. From a terminal:
        </p>
        <pre tabIndex={0}>noetl state show PATH</pre>
      </EmptyState>
    );
  }
  return (
    <>
      <List heads={["Playbook", "Keys", "Size"]}>
        {value.items.map((each) => (
          <tr key={each.path}>
            <td>
              <Link to={pagePath(each.path)} class="title">
                {each.path}
              </Link>
              {open === each.path && <Entries key={round} path={each.path} />}
            </td>
            <td class="number">{each.keys}</td>
            <td class="number">{each.bytes.toLocaleString()} B</td>
            <td class="right actions">
              <Button class="small" aria-label={`${open === each.path ? "Hide" : "Show"} state of ${each.path}`} onClick={() => setOpen(open === each.path ? null : each.path)}>
                {open === each.path ? "Hide" : "Show"}
              </Button>{" "}
              {canEdit && (
                <>
                  <Button class="small" aria-label={`Set state of ${each.path}`} onClick={() => setSetting(each.path)}>
                    Set
                  </Button>{" "}
                  <Button class="small" kind="danger" aria-label={`Reset state of ${each.path}`} onClick={() => setResetting(each.path)}>
                    Reset
                  </Button>
                </>
              )}
            </td>
          </tr>
        ))}
      </List>
      {setting && (
        <SetValue
          path={setting}
          onClose={() => setSetting(null)}
          onDone={() => {
            setSetting(null);
            refresh();
          }}
        />
      )}
      {resetting && (
        <ConfirmDialog
          title={`Reset the state of ${resetting}?`}
          action="Reset"
          onClose={() => setResetting(null)}
          onConfirm={() => {
            setResetting(null);
            void act(() => api.delete(route(resetting)), `Reset ${resetting}`);
          }}
        >
          The next execution starts without it. This cannot be undone.
        </ConfirmDialog>
      )}
    </>
  );
}

const route = (path: string) => `/api/state/${path.split("/").map(encodeURIComponent).join("/")}`;

function Entries({ path }: { path: string }) {
  const { value, problem } = useFetch<{ entries: Entry[] }>(route(path));
  if (problem) return <p class="wrong">{problem.message}</p>;
  if (!value) return <Loading what="Loading state" />;
  return (
    <dl class="state-entries">
      {value.entries.map((each) => (
        <div key={each.key}>
          <dt class="mono">{each.key}</dt>
          <dd>
            <JsonTree value={each.value} open={1} />
            <span class="quiet">
              <Time at={each.updated_at} /> {each.execution_id && <Link to={`/executions/${each.execution_id}`}>{each.execution_id}</Link>}
            </span>
          </dd>
        </div>
      ))}
    </dl>
  );
}

function SetValue({ path, onClose, onDone }: { path: string; onClose: () => void; onDone: () => void }) {
  const [key, setKey] = useState("");
  const [text, setText] = useState("");
  const save = async () => {
    if (!key.trim()) return "Enter a key.";
    const read = await readValue(text);
    if (read.problem) return `Value: ${read.problem}`;
    await api.patch(route(path), { values: { [key.trim()]: read.value } });
    onDone();
  };
  return (
    <FormDialog id="state-form" title={`Set state of ${path}`} action="Save" onClose={onClose} onSave={save}>
      <TextField id="state-key" class="whole" label="Key" hint="or a dotted path" value={key} onInput={setKey} />
      <PayloadField id="state-value" label="Value" hint="YAML or JSON" value={text} onInput={setText} />
    </FormDialog>
  );
}

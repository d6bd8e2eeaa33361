/** Webhooks: URL and credential; add and delete. A generated secret is shown once. */
import { useState } from "preact/hooks";
import { address, api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, Dialog, EmptyState, ErrorState, Loading, notify } from "../common/components";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { ListHeader, actThenReload, FormDialog, List, PlaybookField, NameCell, ConfirmDialog, TextField } from "./components";

interface Webhook {
  name: string;
  path: string;
  version: number | null;
  credential: string;
  window: number;
  url: string;
  created_at: string;
  created_by: string;
  secret?: string;
}

const whole = (webhook: Webhook) => new URL(address(webhook.url), window.location.href).href;

export function Webhooks() {
  const { value, problem, reload } = useFetch<Page<Webhook>>("/api/webhooks", { limit: 500 });
  const [adding, setAdding] = useState(false);
  const [made, setMade] = useState<Webhook | null>(null);
  const [removing, setRemoving] = useState<string | null>(null);
  const canEdit = useHasRole("admin");
  if (problem) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading webhooks" />;
  const act = actThenReload(reload);
  const remove = (name: string) => {
    setRemoving(null);
    void act(() => api.delete(`/api/webhooks/${encodeURIComponent(name)}`), `Deleted ${name}`);
  };
  const add = canEdit && (
    <Button kind="primary" onClick={() => setAdding(true)}>
      Add webhook
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No webhooks yet" action={add}>
          <p>A webhook starts a playbook when another system sends a signed request. From a terminal:</p>
          <pre tabIndex={0}>noetl webhook add examples/hello</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Requests are authenticated by their signature and need no token. They can start only this playbook.">{add}</ListHeader>
          <List heads={["Webhook", "URL", "Signed with", "Created"]}>
            {value.items.map((each) => (
              <tr key={each.name}>
                <NameCell name={each.name} path={each.path} version={each.version} />
                <td>
                  <code class="url">{whole(each)}</code>
                </td>
                <td>
                  <span class="mono">{each.credential}</span>
                  <div class="quiet">signature valid for {each.window} s</div>
                </td>
                <td>
                  <Time at={each.created_at} />
                  <div class="quiet">{each.created_by}</div>
                </td>
                <td class="right">
                  {canEdit && (
                    <Button class="small" kind="danger" aria-label={`Delete ${each.name}`} onClick={() => setRemoving(each.name)}>
                      Delete
                    </Button>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {adding && (
        <Add
          onClose={() => setAdding(false)}
          onDone={(webhook) => {
            setAdding(false);
            if (webhook.secret) setMade(webhook);
            else notify(`Added ${webhook.name}`);
            reload();
          }}
        />
      )}
      {made && (
        <Dialog title={`Secret of ${made.name}`} onClose={() => setMade(null)}>
          <p>Configure it in the system that sends the requests. It is shown only once.</p>
          <pre tabIndex={0} class="secret" aria-label="Secret">
            {made.secret}
          </pre>
          <p class="quiet">
            URL: <code class="url">{whole(made)}</code>
          </p>
        </Dialog>
      )}
      {removing && (
        <ConfirmDialog title={`Delete ${removing}?`} action="Delete" onClose={() => setRemoving(null)} onConfirm={() => remove(removing)}>
          Requests to this webhook are rejected, and its generated secret is deleted.
        </ConfirmDialog>
      )}
    </>
  );
}

function Add({ onClose, onDone }: { onClose: () => void; onDone: (webhook: Webhook) => void }) {
  const [path, setPath] = useState("");
  const [name, setName] = useState("");
  const [credential, setCredential] = useState("");
  const save = async () => {
    if (!path.trim()) return "Enter the path of a playbook.";
    onDone(await api.post<Webhook>("/api/webhooks", { path: path.trim(), name: name.trim() || null, credential: credential.trim() || null }));
  };
  return (
    <FormDialog id="webhook-form" title="Add webhook" action="Add" onClose={onClose} onSave={save}>
      <div class="pair">
        <PlaybookField id="webhook-path" value={path} onInput={setPath} />
        <TextField id="webhook-name" label="Name" hint="default: derived from the path" value={name} onInput={setName} />
      </div>
      <TextField id="webhook-credential" class="whole" label="Credential with the secret" hint="default: a generated secret" value={credential} onInput={setCredential} />
    </FormDialog>
  );
}

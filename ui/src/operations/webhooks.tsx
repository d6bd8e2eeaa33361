/** Playbooks that signed requests start: where to send them, add, remove. A secret is told once. */
import { useState } from "preact/hooks";
import { address, api, type Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, Dialog, EmptyState, ErrorState, Loading, note } from "../frame/pieces";
import { useMay } from "../frame/session";
import { Time } from "../frame/times";
import { Above, deedThen, FormDialog, List, PlaybookField, Starter, Sure, TextField } from "./pieces";

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
  const { value, problem, again } = useFetched<Page<Webhook>>("/api/webhooks", { limit: 500 });
  const [adding, setAdding] = useState(false);
  const [made, setMade] = useState<Webhook | null>(null);
  const [leaving, setLeaving] = useState<string | null>(null);
  const mayAct = useMay("admin");
  if (problem) return <ErrorState problem={problem} retry={again} />;
  if (!value) return <Loading what="Reading webhooks" />;
  const act = deedThen(again);
  const remove = (name: string) => {
    setLeaving(null);
    void act(() => api.delete(`/api/webhooks/${encodeURIComponent(name)}`), `Removed ${name}`);
  };
  const add = mayAct && (
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
          <Above words="Requests need no token: their signature says that they may start this playbook, and nothing else.">{add}</Above>
          <List heads={["Webhook", "Send to", "Signed with", "Made"]}>
            {value.items.map((each) => (
              <tr key={each.name}>
                <Starter name={each.name} path={each.path} version={each.version} />
                <td>
                  <code class="url">{whole(each)}</code>
                </td>
                <td>
                  <span class="mono">{each.credential}</span>
                  <div class="quiet">each signature for {each.window} s</div>
                </td>
                <td>
                  <Time at={each.created_at} />
                  <div class="quiet">{each.created_by}</div>
                </td>
                <td class="right">
                  {mayAct && (
                    <Button class="small" kind="danger" aria-label={`Remove ${each.name}`} onClick={() => setLeaving(each.name)}>
                      Remove
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
            else note(`Added ${webhook.name}`);
            again();
          }}
        />
      )}
      {made && (
        <Dialog title={`The secret of ${made.name}`} onClose={() => setMade(null)}>
          <p>Give it to whoever sends the requests. It is shown this once and never again.</p>
          <pre tabIndex={0} class="told" aria-label="Secret">
            {made.secret}
          </pre>
          <p class="quiet">
            Send to <code class="url">{whole(made)}</code>
          </p>
        </Dialog>
      )}
      {leaving && (
        <Sure title={`Remove ${leaving}?`} action="Remove it" onClose={() => setLeaving(null)} onYes={() => remove(leaving)}>
          Requests to it are refused from now on, and the secret that was made for it is gone.
        </Sure>
      )}
    </>
  );
}

function Add({ onClose, onDone }: { onClose: () => void; onDone: (webhook: Webhook) => void }) {
  const [path, setPath] = useState("");
  const [name, setName] = useState("");
  const [credential, setCredential] = useState("");
  const save = async () => {
    if (!path.trim()) return "Name the playbook that shall start.";
    onDone(await api.post<Webhook>("/api/webhooks", { path: path.trim(), name: name.trim() || null, credential: credential.trim() || null }));
  };
  return (
    <FormDialog id="webhook-form" title="Add a webhook" action="Add" onClose={onClose} onSave={save}>
      <div class="pair">
        <PlaybookField id="webhook-path" value={path} onInput={setPath} />
        <TextField id="webhook-name" label="Name" hint="after the path, if empty" value={name} onInput={setName} />
      </div>
      <TextField id="webhook-credential" class="whole" label="Credential with the secret" hint="a secret is made, if empty" value={credential} onInput={setCredential} />
    </FormDialog>
  );
}

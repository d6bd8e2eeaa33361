/** Playbooks that signed requests start: where to send them, add, remove. A secret is told once. */
import { useState } from "preact/hooks";
import { address, api, Problem, type Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, Dialog, EmptyState, ErrorState, Loading, note, noteProblem } from "../frame/pieces";
import { Link } from "../frame/router";
import { useMay } from "../frame/session";
import { Time } from "../frame/times";
import { placeOf } from "../playbooks/playbook";
import { PlaybookField, Sure } from "./pieces";

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
  const remove = async (name: string) => {
    setLeaving(null);
    try {
      await api.delete(`/api/webhooks/${encodeURIComponent(name)}`);
      note(`Removed ${name}`);
      again();
    } catch (error) {
      noteProblem(error);
    }
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
          <div class="row spaced">
            <p class="quiet grow">Requests need no token: their signature says that they may start this playbook, and nothing else.</p>
            {add}
          </div>
          <div class="card scrolled">
            <table class="list">
              <thead>
                <tr>
                  <th>Webhook</th>
                  <th>Send to</th>
                  <th>Signed with</th>
                  <th>Made</th>
                  <th>
                    <span class="unseen">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {value.items.map((each) => (
                  <tr key={each.name}>
                    <td>
                      <strong>{each.name}</strong>
                      <div>
                        <Link to={placeOf(each.path)}>{each.path}</Link>
                        {each.version !== null && <span class="quiet number"> v{each.version}</span>}
                      </div>
                    </td>
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
              </tbody>
            </table>
          </div>
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
  const [wrong, setWrong] = useState("");
  const save = async (event: Event) => {
    event.preventDefault();
    setWrong("");
    if (!path.trim()) return setWrong("Name the playbook that shall start.");
    try {
      onDone(await api.post<Webhook>("/api/webhooks", { path: path.trim(), name: name.trim() || null, credential: credential.trim() || null }));
    } catch (error) {
      setWrong(error instanceof Problem ? error.message : String(error));
    }
  };
  return (
    <Dialog
      title="Add a webhook"
      onClose={onClose}
      actions={
        <Button kind="primary" type="submit" form="webhook-form">
          Add
        </Button>
      }
    >
      <form id="webhook-form" class="fields" onSubmit={save} noValidate>
        <div class="pair">
          <PlaybookField id="webhook-path" value={path} onInput={setPath} />
          <div>
            <label for="webhook-name">
              Name <span class="quiet">(after the path, if empty)</span>
            </label>
            <input id="webhook-name" type="text" value={name} spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />
          </div>
        </div>
        <div class="whole">
          <label for="webhook-credential">
            Credential with the secret <span class="quiet">(a secret is made, if empty)</span>
          </label>
          <input id="webhook-credential" type="text" value={credential} spellcheck={false} onInput={(event) => setCredential(event.currentTarget.value)} />
        </div>
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
      </form>
    </Dialog>
  );
}

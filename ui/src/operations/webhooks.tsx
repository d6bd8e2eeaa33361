/** Webhooks: address and credential; add, edit, delete. A generated secret is shown once. */
import { useState } from "preact/hooks";
import { address, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, Dialog, EmptyState, ErrorState, Loading } from "../common/components";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { List, ListHeader, NameCell, RowButton, useEntryDialogs } from "./components";
import { TriggerForm, type TriggerDefinition } from "./trigger_form";

interface Webhook extends TriggerDefinition {
  version: number | null;
  credential: string;
  preset: string;
  window: number;
  url: string;
  created_at: string;
  created_by: string;
  paused: boolean;
}

const whole = (name: string) => new URL(address(`/api/webhooks/${name}`), window.location.href).href;

export function Webhooks() {
  const { value, problem, reload } = useFetch<Page<Webhook>>("/api/webhooks", { limit: 500 }, 3000);
  const [made, setMade] = useState<TriggerDefinition | null>(null);
  const canEdit = useHasRole("admin");
  const { dialogs, ...entries } = useEntryDialogs<Webhook>({
    reload,
    called: (each) => each.name,
    route: (each) => `/api/webhooks/${encodeURIComponent(each.name)}`,
    warning: "Requests to this webhook are rejected, and its generated secret is deleted.",
    form: (props) => <TriggerForm {...props} only="webhook" onSaved={(saved) => saved.secret && setMade(saved)} />,
  });
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading webhooks" />;
  const add = canEdit && (
    <Button kind="primary" onClick={entries.add}>
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
              <tr key={each.name} class={each.paused ? "paused" : ""}>
                <NameCell name={each.name} path={each.path} version={each.version} />
                <td>
                  <code class="url">{whole(each.name)}</code>
                </td>
                <td>
                  {each.credential ? <span class="mono">{each.credential}</span> : "not signed"}
                  <div class="quiet">
                    {each.preset === "noetl" ? "" : `${each.preset}, `}signature valid for {each.window} s
                  </div>
                </td>
                <td>
                  <Time at={each.created_at} />
                  <div class="quiet">{each.created_by}</div>
                </td>
                <td class="right actions">
                  {canEdit && (
                    <>
                      <RowButton action="Edit" name={each.name} onClick={() => entries.edit(each)} /> <RowButton action="Delete" name={each.name} kind="danger" onClick={() => entries.remove(each)} />
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {dialogs}
      {made && (
        <Dialog title={`Secret of ${made.name}`} onClose={() => setMade(null)}>
          <p>Configure it in the system that sends the requests. It is shown only once.</p>
          <pre tabIndex={0} class="secret" aria-label="Secret">
            {made.secret}
          </pre>
          <p class="quiet">
            URL: <code class="url">{whole(made.name)}</code>
          </p>
        </Dialog>
      )}
    </>
  );
}

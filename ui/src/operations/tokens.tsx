/** Tokens and their roles; the text of a token is shown once. */
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { copyText } from "../common/copy";
import { useFetch } from "../common/fetch";
import { Button, Dialog, ErrorState, Loading } from "../common/components";
import { useSession } from "../common/session";
import { actThenReload, Choice, ConfirmDialog, FormDialog, List, ListHeader, RowButton, TextField } from "./components";

interface Token {
  name: string;
  role: string;
  pools: string[];
}

const ROLES: Record<string, string> = {
  viewer: "viewer: reads everything except secrets",
  operator: "operator: also starts and controls executions",
  author: "author: also registers playbooks",
  admin: "admin: also manages credentials and tokens",
  worker: "worker: only leases runs",
};

export function Tokens() {
  const { value, problem, reload } = useFetch<Page<Token>>("/api/tokens", {}, 3000);
  const session = useSession();
  const [adding, setAdding] = useState(false);
  const [created, setCreated] = useState<{ name: string; token: string } | null>(null);
  const [revoking, setRevoking] = useState<string | null>(null);
  const act = actThenReload(reload);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading tokens" />;
  return (
    <>
      <ListHeader words="Users and programs sign in with a token; its name is recorded with what they start.">
        <Button kind="primary" onClick={() => setAdding(true)}>
          Create token
        </Button>
      </ListHeader>
      <List heads={["Name", "Role", "Pools"]}>
        {value.items.map((each) => (
          <tr key={each.name}>
            <td>
              <strong>{each.name}</strong>
              {each.name === session.name && <span class="quiet"> (you)</span>}
            </td>
            <td>{each.role}</td>
            <td>{each.role === "worker" ? each.pools.join(", ") || "all" : <span class="quiet">–</span>}</td>
            <td class="right">
              <RowButton action="Revoke" name={each.name} kind="danger" onClick={() => setRevoking(each.name)} />
            </td>
          </tr>
        ))}
      </List>
      {adding && (
        <Create
          onClose={() => setAdding(false)}
          onDone={(token) => {
            setAdding(false);
            setCreated(token);
            reload();
          }}
        />
      )}
      {created && (
        <Dialog title={`Token ${created.name}`} onClose={() => setCreated(null)} actions={<Button kind="primary" onClick={() => copyText(created.token, "token")}>Copy</Button>}>
          <p>Copy the token now. It is not shown again.</p>
          <pre class="secret" tabIndex={0} aria-label="Token">
            {created.token}
          </pre>
        </Dialog>
      )}
      {revoking && (
        <ConfirmDialog
          title={`Revoke ${revoking}?`}
          action="Revoke"
          onClose={() => setRevoking(null)}
          onConfirm={() => {
            setRevoking(null);
            void act(() => api.delete(`/api/tokens/${encodeURIComponent(revoking)}`), `Revoked ${revoking}`);
          }}
        >
          Its users are signed out, and programs that use it are refused.
        </ConfirmDialog>
      )}
    </>
  );
}

function Create({ onClose, onDone }: { onClose: () => void; onDone: (token: { name: string; token: string }) => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("viewer");
  const [pools, setPools] = useState("");
  const save = async () => {
    if (!name.trim()) return "Enter a name.";
    const listed = role === "worker" ? pools.split(",").map((each) => each.trim()).filter(Boolean) : [];
    onDone(await api.post<{ name: string; token: string }>("/api/tokens", { name: name.trim(), role, pools: listed }));
  };
  return (
    <FormDialog id="token-form" title="Create token" action="Create" onClose={onClose} onSave={save}>
      <div class="pair">
        <TextField id="token-name" label="Name" hint="of a user or program" value={name} onInput={setName} />
        <Choice id="token-role" label="Role" value={role} onChange={setRole} choices={ROLES} />
      </div>
      {role === "worker" && <TextField id="token-pools" class="whole" label="Pools" hint="separated by commas; empty: all" value={pools} onInput={setPools} />}
    </FormDialog>
  );
}

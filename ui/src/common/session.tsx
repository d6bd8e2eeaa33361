/** The session: user name, role and permissions. */
import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { api, Problem, setSignedOutHandler } from "./api";
import { Button, ErrorState, Logo } from "./components";

export type Role = "viewer" | "operator" | "author" | "admin" | "worker";

export interface Session {
  name: string;
  role: Role;
  signOut: () => void;
}

const INCLUDES: Record<Role, Role[]> = {
  viewer: ["viewer"],
  operator: ["viewer", "operator"],
  author: ["viewer", "operator", "author"],
  admin: ["viewer", "operator", "author", "admin", "worker"],
  worker: ["worker"],
};

const SessionContext = createContext<Session | null>(null);

export const useSession = () => useContext(SessionContext)!;

/** Whether the session has the permissions of a role. The server enforces them; this only hides controls. */
export const useHasRole = (role: Role) => INCLUDES[useSession().role].includes(role);

/** The token in a URL like `…/#token=…`; it is removed from the URL. */
function tokenInAddress(): string | null {
  const found = /^#token=([\w-]+)$/.exec(window.location.hash);
  if (!found) return null;
  window.history.replaceState(null, "", window.location.pathname + window.location.search);
  return found[1];
}

export function SignedIn({ children }: { children: ComponentChildren }) {
  const [who, setWho] = useState<{ name: string; role: Role } | null>(null);
  const [requested, setAsked] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);

  const loadSession = async () => {
    setProblem(null);
    try {
      const token = tokenInAddress();
      setWho(token ? await api.post("/api/session", { token }) : await api.get("/api/session"));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status !== 401 && error.status !== 403) setProblem(error);
    }
    setAsked(true);
  };
  useEffect(() => {
    setSignedOutHandler(() => setWho(null));
    void loadSession();
  }, []);

  if (problem) return <ErrorState problem={problem} retry={loadSession} />;
  if (!requested) return null;
  if (!who) return <SignIn done={setWho} />;
  const signOut = async () => {
    await api.delete("/api/session").catch(() => {});
    setWho(null);
  };
  return <SessionContext.Provider value={{ ...who, signOut }}>{children}</SessionContext.Provider>;
}

function SignIn({ done }: { done: (who: { name: string; role: Role }) => void }) {
  const [token, setToken] = useState("");
  const [wrong, setWrong] = useState("");
  const submit = async (event: Event) => {
    event.preventDefault();
    setWrong("");
    try {
      const who = await api.post<{ name: string; role: Role }>("/api/session", { token: token.trim() });
      if (who.role === "worker") setWrong("This is a worker token. It cannot be used to sign in.");
      else done(who);
    } catch (error) {
      setWrong(error instanceof Problem ? error.message : String(error));
    }
  };
  return (
    <main class="sign-in">
      <form class="card" onSubmit={submit}>
        <Logo />
        <h1>Sign in</h1>
        <label for="token">Token</label>
        <input
          id="token"
          type="password"
          autocomplete="current-password"
          spellcheck={false}
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
          aria-invalid={wrong ? "true" : undefined}
          aria-describedby="token-help"
          autofocus
        />
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
        <Button kind="primary" type="submit" disabled={!token.trim()}>
          Sign in
        </Button>
        <p id="token-help" class="quiet">
          The first start of a server writes an admin token to <code>admin.token</code> in its home directory. Create more tokens,
          also with other roles, with <code>noetl token create NAME --role viewer</code>.
        </p>
      </form>
    </main>
  );
}

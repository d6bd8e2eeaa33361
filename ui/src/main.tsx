/** The page: who is signed in, where we are, and the room that answers for it. */
import { render } from "preact";
import { useEffect } from "preact/hooks";
import "./style.css";
import { Link, Router, usePlace, useRoute } from "./frame/router";
import { EmptyState, Logo, Notes } from "./frame/pieces";
import { SignedIn, useSession } from "./frame/session";
import { applyTheme, ThemeSwitch } from "./frame/theme";
import { Executions } from "./executions";
import { Execution } from "./execution";
import { Playbooks } from "./playbooks";
import { Operations } from "./operations";

type Room = (props: { params: Record<string, string> }) => any;

const ROOMS: [string, Room][] = [
  ["/", Executions],
  ["/executions", Executions],
  ["/executions/:id", Execution],
  ["/playbooks/*", Playbooks],
  ["/operations/*", Operations],
];

const PLACES: [string, string][] = [
  ["/executions", "Executions"],
  ["/playbooks", "Playbooks"],
  ["/operations", "Operations"],
];

function Head() {
  const { path } = usePlace();
  const session = useSession();
  const here = (to: string) => path === to || path.startsWith(`${to}/`) || (path === "/" && to === "/executions");
  return (
    <header class="head">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to content
      </a>
      <Link to="/executions" class="brand" aria-label="NoETL, to the executions">
        <Logo />
        <span>NoETL</span>
      </Link>
      <nav aria-label="Pages">
        {PLACES.map(([to, words]) => (
          <Link key={to} to={to} aria-current={here(to) ? "page" : undefined}>
            {words}
          </Link>
        ))}
      </nav>
      <span class="who" title={`signed in as ${session.name}, role ${session.role}`}>
        <span class="name">{session.name}</span>
        {session.role !== session.name && <span class="quiet"> {session.role}</span>}
      </span>
      <ThemeSwitch />
      <button type="button" class="icon" onClick={session.signOut} title="Sign out" aria-label="Sign out">
        <svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
          <path d="M6 2.5H3.5a1 1 0 0 0-1 1v9a1 1 0 0 0 1 1H6M10.5 11L13.5 8l-3-3M13.2 8H6.2" />
        </svg>
      </button>
    </header>
  );
}

function Pages() {
  const found = useRoute(ROOMS);
  const { path } = usePlace();
  useEffect(() => {
    const place = PLACES.find(([to]) => path.startsWith(to));
    document.title = `${place ? place[1] : "Executions"} · NoETL`;
  }, [path]);
  if (!found) {
    return (
      <main id="main" tabIndex={-1}>
        <EmptyState title="There is no such page" action={<Link to="/executions">To the executions</Link>}>
          <p>The address may be old, or a letter is missing.</p>
        </EmptyState>
      </main>
    );
  }
  const Shown = found.value;
  return (
    <main id="main" tabIndex={-1}>
      <Shown params={found.params} />
    </main>
  );
}

applyTheme();
render(
  <Router>
    <SignedIn>
      <Head />
      <Pages />
    </SignedIn>
    <Notes />
  </Router>,
  document.getElementById("app")!,
);

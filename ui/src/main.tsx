/** The web page: session, navigation and routing. */
import { type ComponentType, render } from "preact";
import { useEffect } from "preact/hooks";
// All styles are in one file: those of a part that is loaded later must be there before it is shown.
import "@xyflow/react/dist/base.css";
import "./style.css";
import "./net/net.css";
import "./executions/executions.css";
import "./home/home.css";
import "./execution/execution.css";
import "./playbooks/playbooks.css";
import "./operations/operations.css";
import "./lineage/lineage.css";
import { Link, Router, useLocation, useRoute } from "./common/router";
import { EmptyState, Logo, Notes, Unreachable } from "./common/components";
import { SignedIn, useSession } from "./common/session";
import { applyTheme, ThemeSwitch } from "./common/theme";
import { lazy } from "./common/lazy";
import { Palette } from "./common/palette";
import { Executions } from "./executions";
import { Home } from "./home";

type PageComponent = ComponentType<{ params: Record<string, string> }>;

// Home and the list are part of the first view; other pages are loaded when they are first shown.
const Execution: PageComponent = lazy(() => import("./execution").then((module) => module.Execution));
const Playbooks: PageComponent = lazy(() => import("./playbooks").then((module) => module.Playbooks));
const Compare: PageComponent = lazy(() => import("./compare").then((module) => module.Compare));
const Inbox: PageComponent = lazy(() => import("./inbox").then((module) => module.Inbox));
const Lineage: PageComponent = lazy(() => import("./lineage").then((module) => module.Lineage));
const Operations: PageComponent = lazy(() => import("./operations").then((module) => module.Operations));

const ROUTES: [string, PageComponent][] = [
  ["/", Home],
  ["/executions", Executions],
  ["/executions/:id", Execution],
  ["/compare/:left/:right", Compare],
  ["/inbox", Inbox],
  ["/playbooks/*", Playbooks],
  ["/lineage", Lineage],
  ["/operations/*", Operations],
];

const NAVIGATION: [string, string][] = [
  ["/", "Home"],
  ["/executions", "Executions"],
  ["/inbox", "Inbox"],
  ["/playbooks", "Playbooks"],
  ["/operations", "Operations"],
];

/** The path that the navigation shows for a page: lineage belongs to the playbooks. */
const sectionOf = (path: string) => (path === "/lineage" ? "/playbooks" : path);

function Head() {
  const path = sectionOf(useLocation().path);
  const session = useSession();
  const here = (to: string) => path === to || (to !== "/" && path.startsWith(`${to}/`));
  return (
    <header class="head">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to content
      </a>
      <Link to="/" class="brand" aria-label="NoETL, go to home">
        <Logo />
        <span>NoETL</span>
      </Link>
      <nav aria-label="Pages">
        {NAVIGATION.map(([to, label]) => (
          <Link key={to} to={to} aria-current={here(to) ? "page" : undefined}>
            {label}
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
  const found = useRoute(ROUTES);
  const path = sectionOf(useLocation().path);
  useEffect(() => {
    const place = NAVIGATION.find(([to]) => (to === "/" ? path === to : path.startsWith(to)));
    document.title = `${place ? place[1] : "Executions"} · NoETL`;
  }, [path]);
  if (!found) {
    return (
      <main id="main" tabIndex={-1}>
        <EmptyState title="Page not found" action={<Link to="/executions">Go to executions</Link>}>
          <p>The address may be outdated or misspelled.</p>
        </EmptyState>
      </main>
    );
  }
  const Shown = found.value;
  return (
    <main id="main" tabIndex={-1}>
      <Unreachable />
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
      <Palette />
    </SignedIn>
    <Notes />
  </Router>,
  document.getElementById("app")!,
);

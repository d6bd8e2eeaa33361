/** The latest version of every playbook in the catalog. */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading, notifyProblem, Status } from "../common/components";
import { go, Link, useQueryValue } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { pagePath, type Stored } from "./playbook";
import { RunDialog } from "./run";
import { STARTER } from "./starter";

const POLL = 4000;

export function Catalog() {
  const [search, setSearch] = useQueryValue("search");
  const [typed, setTyped] = useState(search);
  const [more, setMore] = useState<Stored[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [running, setRunning] = useState<Stored | null>(null);
  const canRun = useHasRole("operator");
  const canWrite = useHasRole("author");
  const { value, problem, reload } = useFetch<Page<Stored>>("/api/catalog", { search }, POLL);
  const box = useRef<HTMLInputElement>(null);

  useEffect(() => setMore([]), [search]);
  useEffect(() => {
    if (!more.length) setNext(value?.next ?? null);
  }, [value]);
  useEffect(() => {
    const timer = setTimeout(() => typed !== search && setSearch(typed), 200);
    return () => clearTimeout(timer);
  }, [typed]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement) return;
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const by = event.key === "j" || event.key === "ArrowDown" ? 1 : event.key === "k" || event.key === "ArrowUp" ? -1 : 0;
      if (event.key === "/") box.current?.focus();
      else if (by) stepTo(by);
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);

  const readMore = async () => {
    try {
      const page = await api.get<Page<Stored>>("/api/catalog", { search, after: next });
      setMore((all) => [...all, ...page.items]);
      setNext(page.next);
    } catch (error) {
      notifyProblem(error);
    }
  };

  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (value && !value.items.length && !search) return <FirstRun canWrite={canWrite} />;
  const rows = [...(value?.items ?? []), ...more];
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Playbooks</h1>
        <input
          ref={box}
          type="search"
          placeholder="Search paths  ( / )"
          aria-label="Search playbooks by path"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <Link to="/lineage" class="button">
          Lineage
        </Link>
        {canWrite && (
          <Button kind="primary" onClick={() => go("/playbooks?new=1")}>
            New playbook
          </Button>
        )}
      </div>
      {!value && <Loading what="Loading catalog" />}
      {value && !rows.length && (
        <EmptyState title="No matching playbooks" action={<Button onClick={() => setTyped("")}>Show all</Button>}>
          <p>No path in the catalog contains “{search}”.</p>
        </EmptyState>
      )}
      {rows.length > 0 && (
        <div class="card scrolled">
          <table class="list catalog">
            <thead>
              <tr>
                <th>Playbook</th>
                <th>Last run</th>
                <th class="right">Steps</th>
                <th class="right">Version</th>
                <th>Registered</th>
                <th>
                  <span class="unseen">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((each) => (
                <tr key={each.path}>
                  <td>
                    <Link to={pagePath(each.path)} class="title">
                      {each.path}
                    </Link>
                    {each.description && <div class="quiet">{each.description}</div>}
                  </td>
                  <td>
                    {each.last_execution ? (
                      <Link to={`/executions/${each.last_execution.execution_id}`} class="plain">
                        <Status status={each.last_execution.status} />
                      </Link>
                    ) : (
                      <span class="quiet">–</span>
                    )}
                  </td>
                  <td class="right number">{each.steps}</td>
                  <td class="right number">
                    <Link to={`${pagePath(each.path)}?tab=versions`} aria-label={`v${each.version}, versions of ${each.path}`}>
                      v{each.version}
                    </Link>
                  </td>
                  <td>
                    <Time at={each.registered_at} />
                  </td>
                  <td class="right">
                    {canRun && (
                      <Button class="small" onClick={() => setRunning(each)} aria-label={`Run ${each.path}`}>
                        Run
                      </Button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {next && (
        <p class="more">
          <Button onClick={readMore}>Show more</Button>
        </p>
      )}
      {running && <RunDialog path={running.path} title={running.path} onClose={() => setRunning(null)} />}
    </>
  );
}

/** Move the focus to the playbook above or below; Enter opens it. */
function stepTo(by: number) {
  const titles = [...document.querySelectorAll<HTMLElement>("table.catalog .title")];
  const at = titles.indexOf(document.activeElement as HTMLElement);
  titles[Math.min(titles.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
}

function FirstRun({ canWrite }: { canWrite: boolean }) {
  return (
    <EmptyState
      title="No playbooks yet"
      action={
        canWrite && (
          <Button kind="primary" onClick={() => go("/playbooks?new=1")}>
            New playbook
          </Button>
        )
      }
    >
      <p>A playbook is a YAML file that defines steps, their order and their tools. From a terminal:</p>
      <pre tabIndex={0}>noetl register playbook.yaml</pre>
      <p>{canWrite ? "Or start with this example in the editor:" : "Example:"}</p>
      <pre class="starter" tabIndex={0} aria-label="Example playbook">
        {STARTER}
      </pre>
    </EmptyState>
  );
}

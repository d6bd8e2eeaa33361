/** The versions of a playbook, and the differences between two of them. */
import { useMemo } from "preact/hooks";
import type { Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, ErrorState, Loading } from "../common/components";
import { go, Link, setQuery, useLocation } from "../common/router";
import { Time } from "../common/times";
import { difference, hunks, type Row } from "./diff";
import { pagePath, catalogPath, versionsPath, type Stored } from "./playbook";

export function Versions({ path }: { path: string }) {
  const { query } = useLocation();
  const { value, problem, reload } = useFetch<Page<Stored>>(versionsPath(path), { limit: 200 });
  if (problem) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading versions" />;
  const newest = value.items[0].version;
  const to = Number(query.get("to")) || newest;
  const from = Number(query.get("from")) || Math.max(1, to - 1);
  return (
    <div class="versions">
      <div class="card scrolled">
        <table class="list">
          <thead>
            <tr>
              <th>Version</th>
              <th>Registered</th>
              <th>Old</th>
              <th>New</th>
              <th>
                <span class="unseen">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {value.items.map((each) => (
              <tr key={each.version}>
                <td>
                  <Link to={`${pagePath(path)}?version=${each.version}`} class="number">
                    v{each.version}
                  </Link>
                  {each.version === newest && <span class="quiet"> latest</span>}
                </td>
                <td>
                  <Time at={each.registered_at} />
                </td>
                <td>
                  <input type="radio" name="from" checked={each.version === from} onChange={() => setQuery({ from: String(each.version) })} aria-label={`Compare from version ${each.version}`} />
                </td>
                <td>
                  <input type="radio" name="to" checked={each.version === to} onChange={() => setQuery({ to: String(each.version) })} aria-label={`Compare to version ${each.version}`} />
                </td>
                <td class="right">
                  <Button class="small" onClick={() => go(`${pagePath(path)}?version=${each.version}`)} aria-label={`Open version ${each.version}`}>
                    Open
                  </Button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
        {value.next && <p class="foot quiet">Older versions: noetl catalog show {path} --version N</p>}
      </div>
      <Difference path={path} from={from} to={to} />
    </div>
  );
}

function Difference({ path, from, to }: { path: string; from: number; to: number }) {
  const before = useFetch<Stored>(catalogPath(path), { version: from });
  const after = useFetch<Stored>(catalogPath(path), { version: to });
  const rows = useMemo(
    () => (before.value && after.value ? difference(before.value.content!, after.value.content!) : null),
    [before.value, after.value],
  );
  const problem = before.problem ?? after.problem;
  if (problem) return <ErrorState problem={problem} retry={() => (before.reload(), after.reload())} />;
  if (!rows) return <Loading what="Comparing" />;
  const added = rows.filter((row) => row.kind === "added").length;
  const removed = rows.filter((row) => row.kind === "removed").length;
  return (
    <section class="card difference" aria-label={`Changes from version ${from} to version ${to}`}>
      <header class="row">
        <h2 class="grow">
          v{from} → v{to}
        </h2>
        {added + removed > 0 && (
          <span class="number">
            <span class="plus">+{added}</span> <span class="minus">−{removed}</span>
          </span>
        )}
      </header>
      {added + removed === 0 ? (
        <p class="quiet pad">{from === to ? "Select two versions to compare." : "The versions are identical."}</p>
      ) : (
        <DiffRows rows={rows} />
      )}
    </section>
  );
}

function DiffRows({ rows }: { rows: Row[] }) {
  return (
    <div class="lines" tabIndex={0} role="group" aria-label="Changed lines">
      {hunks(rows).map((row, index) =>
        typeof row === "number" ? (
          <div key={index} class="gap">
            {row} unchanged line{row > 1 ? "s" : ""}
          </div>
        ) : (
          <div key={index} class={`line ${row.kind}`}>
            <span class="at">{row.old ?? ""}</span>
            <span class="at">{row.new ?? ""}</span>
            <span class="sign" aria-label={row.kind === "same" ? undefined : row.kind}>
              {row.kind === "added" ? "+" : row.kind === "removed" ? "−" : ""}
            </span>
            <span class="text">{row.text}</span>
          </div>
        ),
      )}
    </div>
  );
}

/** The changes from one text to another. */
export function DiffView({ before, after }: { before: string; after: string }) {
  const rows = useMemo(() => difference(before, after), [before, after]);
  return (
    <div class="difference inline">
      <DiffRows rows={rows} />
    </div>
  );
}

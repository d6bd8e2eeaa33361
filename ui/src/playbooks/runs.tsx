/** The latest executions of one playbook. */
import type { Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { EmptyState, ErrorState, Loading, Status } from "../common/components";
import { Link } from "../common/router";
import { Duration, Time } from "../common/times";
import { History } from "./history";

interface Run {
  execution_id: string;
  status: string;
  version: string | null;
  started_at: string;
  ended_at: string | null;
  error: string | null;
}

export function Runs({ path }: { path: string }) {
  const { value, problem, reload } = useFetch<Page<Run>>("/api/executions", { path, limit: 50 }, 3000);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading executions" />;
  if (!value.items.length) {
    return (
      <EmptyState title="No executions yet">
        <p>Run it from the Source tab, or from a terminal:</p>
        <pre tabIndex={0}>noetl execute {path}</pre>
      </EmptyState>
    );
  }
  return (
    <>
    <History path={path} />
    <div class="card scrolled">
      <table class="list">
        <thead>
          <tr>
            <th>Execution</th>
            <th>Status</th>
            <th>Version</th>
            <th>Started</th>
            <th class="right">Duration</th>
          </tr>
        </thead>
        <tbody>
          {value.items.map((each) => (
            <tr key={each.execution_id}>
              <td>
                <Link to={`/executions/${each.execution_id}`} class="mono">
                  {each.execution_id}
                </Link>
                {each.error && <div class="wrong clip">{each.error}</div>}
              </td>
              <td>
                <Status status={each.status} />
              </td>
              <td class="number">{each.version ? `v${each.version}` : "–"}</td>
              <td>
                <Time at={each.started_at} />
              </td>
              <td class="right">
                <Duration from={each.started_at} to={each.ended_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {value.next && (
        <p class="foot">
          <Link to={`/executions?path=${encodeURIComponent(path)}`}>All executions of this playbook</Link>
        </p>
      )}
    </div>
    </>
  );
}

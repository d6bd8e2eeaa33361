/** The state inspector: ctx, workload, tokens, leases with their scopes, loops, at the selected event. */
import { ErrorState, Loading, Status } from "../common/components";
import { Link } from "../common/router";
import { Time } from "../common/times";
import type { Snapshot, StateDocument } from "./snapshot";
import { JsonTree } from "./json";

const MOST = 200;

export function StateView({ requested, step }: { requested: Snapshot<StateDocument>; step: string | null }) {
  const { value: state, problem, stale } = requested;
  if (problem && !state) return <ErrorState problem={problem} />;
  if (!state) return <Loading what="Loading state" />;
  const runs = state.runs.filter((run) => !step || run.step === step);
  const waiting = state.waiting.filter((token) => !step || token.step === step);
  const loops = state.loops.filter((loop) => !step || loop.step === step);
  return (
    <div class={`inspector ${stale ? "stale" : ""}`}>
      <section>
        <h3>ctx</h3>
        {Object.keys(state.ctx).length ? <JsonTree value={state.ctx} open={2} /> : <p class="quiet">Empty.</p>}
      </section>
      <section>
        <h3>Leases {runs.length > 0 && <span class="quiet number">{runs.length.toLocaleString()}</span>}</h3>
        {runs.length ? (
          <div class="scroll-x">
            <table class="small-table">
              <thead>
                <tr>
                  <th>Run</th>
                  <th>Status</th>
                  <th>Task</th>
                  <th>Worker</th>
                  <th>Since</th>
                  <th>step · iter</th>
                </tr>
              </thead>
              <tbody>
                {runs.slice(0, MOST).map((run) => (
                  <tr key={run.run_id}>
                    <td>
                      {run.step}
                      {run.iteration && <span class="quiet">[{run.iteration.join(".")}]</span>}
                    </td>
                    <td>
                      <Status status={run.status === "leased" ? "running" : run.status} />
                    </td>
                    <td class="mono">{run.task ?? "–"}</td>
                    <td class="mono" title={run.worker ?? undefined}>
                      {run.worker ? `${run.worker.slice(0, 18)} · lease ${run.epoch}` : "–"}
                    </td>
                    <td>
                      <Time at={run.since} />
                    </td>
                    <td>
                      <JsonTree value={{ ...run.scopes }} open={0} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
            {runs.length > MOST && <p class="quiet">{(runs.length - MOST).toLocaleString()} more</p>}
          </div>
        ) : (
          <p class="quiet">No open runs.</p>
        )}
      </section>
      <section>
        <h3>Waiting tokens</h3>
        {waiting.length ? (
          <table class="small-table">
            <tbody>
              {waiting.slice(0, MOST).map((token) => (
                <tr key={token.token}>
                  <td>before {token.step}</td>
                  <td class="quiet">{token.from ? `from ${token.from}` : "at the entry"}</td>
                  <td>{REASONS[token.reason] ?? token.reason}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : (
          <p class="quiet">None.</p>
        )}
      </section>
      {loops.length > 0 && (
        <section>
          <h3>Loops</h3>
          <table class="small-table">
            <tbody>
              {loops.slice(0, MOST).map((loop) => (
                <tr key={loop.run_id + loop.path.join(".")}>
                  <td>
                    {loop.step}
                    {loop.path.length > 0 && <span class="quiet">[{loop.path.join(".")}]</span>}
                  </td>
                  <td class="number">
                    {loop.finished.toLocaleString()} of {loop.count.toLocaleString()}
                  </td>
                  <td class="quiet">
                    {loop.succeeded.toLocaleString()} succeeded, {loop.failed.toLocaleString()} failed, {loop.skipped.toLocaleString()} skipped
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {state.children.length > 0 && (
        <section>
          <h3>Children</h3>
          <ul class="plain">
            {state.children.slice(0, MOST).map((child) => (
              <li key={child.run_id}>{child.execution_id ? <Link to={`/executions/${child.execution_id}`}>{child.path}</Link> : child.path}</li>
            ))}
          </ul>
        </section>
      )}
      <section>
        <h3>workload</h3>
        <JsonTree value={state.workload} open={1} />
      </section>
    </div>
  );
}

const REASONS: Record<string, string> = {
  admission: "admission condition is false",
  join: "waiting for other branches",
  paused: "the execution is paused",
};

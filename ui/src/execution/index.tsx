/** One execution: graph, timeline, events, state, results and logs, at any event of its log. */
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { api, once } from "../common/api";
import { EmptyState, ErrorState, Loading, notify, notifyProblem, Status, Tabs } from "../common/components";
import { go, Link, setQuery, useLocation } from "../common/router";
import { useFetch } from "../common/fetch";
import { useHasRole } from "../common/session";
import { Duration, Time } from "../common/times";
import { ENDED, type Row } from "../executions/data";
import { NetView } from "../net";
import type { Net } from "../net/layout";
import { Actions, type Asking } from "./actions";
import { useSnapshot, type Explanation, type StateDocument } from "./snapshot";
import { Events } from "./events";
import { useLog } from "./live";
import { Failure } from "./failure";
import { Iterations } from "./iterations";
import { LogView } from "./log_view";
import { Tasks } from "./tasks";
import { usePane, useSide } from "./pane";
import { Copy } from "../common/copy";
import { CopyMenu } from "./copy_menu";
import { momentAt } from "./moment";
import { Results } from "./results";
import { Slider } from "./slider";
import { StateView } from "./state";
import { StepPanel } from "./step";
import { Timeline } from "./timeline";
import { Why } from "./why";

type Tab = "failure" | "timeline" | "logs" | "tasks" | "iterations" | "results" | "events" | "state";
const TABS: [Tab, string][] = [
  ["failure", "Failure"],
  ["timeline", "Timeline"],
  ["logs", "Logs"],
  ["tasks", "Tasks"],
  ["iterations", "Iterations"],
  ["results", "Results"],
  ["events", "Events"],
  ["state", "State"],
];

export function Execution({ params: { id } }: { params: Record<string, string> }) {
  const { query } = useLocation();
  const { log, loaded, stream, problem, version } = useLog(id);
  const requested = Number(query.get("at"));
  const at = Number.isInteger(requested) && requested >= 1 && requested < log.length ? requested : null;
  const seq = at ?? log.length;
  const step = query.get("step");
  const [asking, setAsking] = useState<Asking>(null);
  const [rerunFrom, setRerunFrom] = useState<string | null>(null);
  useEffect(() => setAsking(null), [id]);
  const canOperate = useHasRole("operator");

  const now = useMemo(() => momentAt(log, log.length), [log, version]);
  const moment = useMemo(() => (at === null ? now : momentAt(log, at)), [log, version, at]);
  const ended = ENDED.has(now.status);
  const failed = now.status === "failed" && at === null;
  const loops = useMemo(() => [...now.steps.values()].some((each) => each.iterations > 0), [now]);
  const tabs = TABS.filter(([key]) => (key !== "failure" || failed) && (key !== "iterations" || loops));
  const usual: Tab = failed ? "failure" : "timeline";
  const tab = tabs.find(([key]) => key === query.get("tab"))?.[0] ?? usual;
  const children = useMemo(() => [...now.steps.values()].reduce((sum, each) => sum + each.children.length, 0), [now]);
  const synthesized = [...log.more.values()].filter((more) => more.made).length;

  const row = useFetch<Row>(`/api/executions/${id}`, { made: ended ? "1" : null });
  const net = useFetch<Net>(log.length ? `/api/executions/${id}/graph` : null, { made: synthesized || null });
  const state = useSnapshot<StateDocument>(`/api/executions/${id}/state`, seq, at, loaded && (tab === "state" || tab === "results"));
  const why = useSnapshot<Explanation>(`/api/executions/${id}/why`, seq, at, loaded, at === null && !ended ? { brief: true } : {});

  const lowered = tab !== "timeline";
  const pane = usePane(lowered ? 150 : 230);
  const side = useSide();

  const rerunFailed = async () => {
    try {
      const made = await api.post<{ execution_id: string }>(`/api/executions/${id}/rerun`, { failed: true }, once());
      notify("Started: only what failed runs again");
      go(`/executions/${made.execution_id}`);
    } catch (error) {
      notifyProblem(error);
    }
  };

  const setAt = useCallback((to: number | null) => setQuery({ at: to === null ? null : String(to) }), []);
  const select = useCallback((to: string | null) => setQuery({ step: to }), []);
  const order = useMemo(() => net.value?.nodes.map((node) => node.step) ?? [], [net.value]);
  const path = row.value?.path ?? net.value?.path ?? "";
  useEffect(() => {
    if (path) document.title = `${path} · ${moment.status} · NoETL`;
  }, [path, moment.status]);

  if (problem?.status === 404) {
    return (
      <EmptyState title="Execution not found" action={<Link to="/executions">Go to executions</Link>}>
        <p>{problem.detail}. It may be on another server, or its log was deleted.</p>
      </EmptyState>
    );
  }
  if (problem && !log.length) return <ErrorState problem={problem} retry={() => window.location.reload()} />;
  if (!log.length) return <Loading what="Loading execution" />;
  // The failure tab has the error; a second copy beside it would only take room.
  const aside = tab !== "failure" || step !== null;
  const node = step ? (net.value?.nodes.find((each) => each.step === step) ?? null) : null;
  const explanation = <Why requested={why} onSeq={setAt} failed={moment.status === "failed"} now={at === null && !ended ? null : moment.at} onSelect={select} />;
  return (
    <div class="execution">
      <header class="ex-head">
        <div class="grow">
          <p class="crumbs">
            <Link to="/executions">Executions</Link>
            <span class="quiet"> / {id}</span> <Copy text={id} what="the execution id" />
            {row.value?.parent && (
              <>
                {" "}
                <span class="quiet">child of</span> <Link to={`/executions/${row.value.parent}`}>{row.value.parent}</Link>
              </>
            )}
          </p>
          <div class="ex-title">
          <h1>
            <Link to={`/playbooks/${path}`}>{path || id}</Link>
            {row.value?.version && <span class="quiet version"> v{row.value.version}</span>}
          </h1>
          <p class="facts">
            <Status status={moment.status} />
            <span>
              started <Time at={now.startedAt} />
            </span>
            <span>
              {ended ? "took" : "for"} <Duration from={new Date(now.startedAt).toISOString()} to={ended ? new Date(now.at).toISOString() : null} />
            </span>
            {children > 0 && (
              <Link to={`/executions?parent=${id}`}>
                {children.toLocaleString()} {children === 1 ? "child" : "children"}
              </Link>
            )}
            <Connection stream={stream} ended={ended} loaded={loaded} />
          </p>
          </div>
        </div>
        <CopyMenu id={id} path={path} />
        <Actions
          id={id}
          path={path}
          version={row.value?.version ?? null}
          log={log}
          status={now.status}
          steps={order}
          from={rerunFrom ?? step}
          at={at}
          asking={asking}
          setAsking={(to) => {
            if (to === null) setRerunFrom(null);
            setAsking(to);
          }}
        />
      </header>
      <Slider log={log} at={at} onAt={setAt} ended={ended} />
      <div class={`ex-body ${aside ? "" : "whole"}`} style={side.style}>
        <div class="ex-main">
          <section class="card ex-net" aria-label="Graph" style={pane.style} hidden={pane.closed}>
            {net.value ? (
              <NetView net={net.value} moment={moment} selected={step} onSelect={select} />
            ) : net.problem ? (
              <ErrorState problem={net.problem} retry={net.reload} />
            ) : (
              <Loading what="Loading graph" />
            )}
          </section>
          {pane.handle}
          <section class="card ex-tabs">
            <Tabs label="Views" tabs={tabs} value={tab} onChange={(to) => setQuery({ tab: to === usual ? null : to, only: null, find: null })} />
            <div id={`panel-${tab}`} role="tabpanel" aria-labelledby={`tab-${tab}`} class="panel">
              {tab === "timeline" && <Timeline log={log} version={version} seq={seq} order={order} selected={step} onSelect={select} onSeq={setAt} live={at === null && !ended} />}
              {tab === "events" && <Events log={log} version={version} id={id} seq={seq} onSeq={setAt} step={step} />}
              {tab === "state" && <StateView requested={state} step={step} />}
              {tab === "results" && <Results requested={state} step={step} onSelect={select} />}
              {tab === "failure" && (
                <Failure
                  id={id}
                  log={log}
                  version={version}
                  path={path}
                  playbookVersion={row.value?.version ?? null}
                  because={why.value?.because ?? null}
                  rerun={
                    canOperate
                      ? (from) => {
                          setRerunFrom(from);
                          setAsking("rerun");
                        }
                      : null
                  }
                >
                  {explanation}
                </Failure>
              )}
              {tab === "logs" && <LogView key={id} id={id} step={step} ended={ended} until={at === null ? null : moment.at} />}
              {tab === "tasks" && <Tasks id={id} log={log} version={version} seq={seq} step={step} />}
              {tab === "iterations" && <Iterations id={id} log={log} version={version} seq={seq} step={step} rerunFailed={canOperate && ended ? rerunFailed : null} />}
            </div>
          </section>
        </div>
        {aside && side.handle}
        <aside class="ex-side" hidden={!aside}>
          {step && <StepPanel step={step} node={node} moment={moment} close={() => select(null)} rerun={canOperate ? () => setAsking("rerun") : null} />}
          <section class="card side" aria-label="Why">
            <h2>{ended && at === null ? "Result" : "Waiting for"}</h2>
            {explanation}
            {now.waits > 0 && at === null && (
              <Link class="button" to="/inbox">
                Answer in the inbox
              </Link>
            )}
          </section>
        </aside>
      </div>
    </div>
  );
}

function Connection({ stream, ended, loaded }: { stream: string; ended: boolean; loaded: boolean }) {
  if (!loaded) return <span class="quiet">loading events …</span>;
  if (ended) return null;
  if (stream === "waiting") return <span class="status waiting">reconnecting …</span>;
  return stream === "live" ? <span class="quiet live-word">live</span> : null;
}

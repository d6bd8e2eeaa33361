/** One execution: graph, timeline, events, state, results and logs, at any event of its log. */
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { EmptyState, ErrorState, Loading, Status, Tabs } from "../common/components";
import { Link, setQuery, useLocation } from "../common/router";
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
import { Logs } from "./logs";
import { momentAt } from "./moment";
import { Results } from "./results";
import { Slider } from "./slider";
import { StateView } from "./state";
import { StepPanel } from "./step";
import { Timeline } from "./timeline";
import { Why } from "./why";

type Tab = "timeline" | "events" | "state" | "results" | "logs";
const TABS: [Tab, string][] = [
  ["timeline", "Timeline"],
  ["events", "Events"],
  ["state", "State"],
  ["results", "Results"],
  ["logs", "Logs"],
];

export function Execution({ params: { id } }: { params: Record<string, string> }) {
  const { query } = useLocation();
  const { log, loaded, stream, problem, version } = useLog(id);
  const tab = (TABS.find(([key]) => key === query.get("tab"))?.[0] ?? "timeline") as Tab;
  const requested = Number(query.get("at"));
  const at = Number.isInteger(requested) && requested >= 1 && requested < log.length ? requested : null;
  const seq = at ?? log.length;
  const step = query.get("step");
  const [asking, setAsking] = useState<Asking>(null);
  const canOperate = useHasRole("operator");

  const now = useMemo(() => momentAt(log, log.length), [log, version]);
  const moment = useMemo(() => (at === null ? now : momentAt(log, at)), [log, version, at]);
  const ended = ENDED.has(now.status);
  const children = useMemo(() => [...now.steps.values()].reduce((sum, each) => sum + each.children.length, 0), [now]);
  const synthesized = [...log.more.values()].filter((more) => more.made).length;

  const row = useFetch<Row>(`/api/executions/${id}`, { made: ended ? "1" : null });
  const net = useFetch<Net>(log.length ? `/api/executions/${id}/graph` : null, { made: synthesized || null });
  const state = useSnapshot<StateDocument>(`/api/executions/${id}/state`, seq, at, loaded && (tab === "state" || tab === "results"));
  const why = useSnapshot<Explanation>(`/api/executions/${id}/why`, seq, at, loaded, at === null && !ended ? { brief: true } : {});

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
  const node = step ? (net.value?.nodes.find((each) => each.step === step) ?? null) : null;
  return (
    <div class="execution">
      <header class="ex-head">
        <div class="grow">
          <p class="crumbs">
            <Link to="/executions">Executions</Link>
            <span class="quiet"> / {id}</span>
            {row.value?.parent && (
              <>
                {" "}
                <span class="quiet">child of</span> <Link to={`/executions/${row.value.parent}`}>{row.value.parent}</Link>
              </>
            )}
          </p>
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
        <Actions id={id} status={now.status} steps={order} from={step} asking={asking} setAsking={setAsking} />
      </header>
      <Slider log={log} at={at} onAt={setAt} ended={ended} />
      <div class="ex-body">
        <div class="ex-main">
          <section class="card ex-net" aria-label="Graph">
            {net.value ? (
              <NetView net={net.value} moment={moment} selected={step} onSelect={select} />
            ) : net.problem ? (
              <ErrorState problem={net.problem} retry={net.reload} />
            ) : (
              <Loading what="Loading graph" />
            )}
          </section>
          <section class="card ex-tabs">
            <Tabs label="Views" tabs={TABS} value={tab} onChange={(to) => setQuery({ tab: to === "timeline" ? null : to })} />
            <div id={`panel-${tab}`} role="tabpanel" aria-labelledby={`tab-${tab}`} class="panel">
              {tab === "timeline" && <Timeline log={log} version={version} seq={seq} order={order} selected={step} onSelect={select} onSeq={setAt} live={at === null && !ended} />}
              {tab === "events" && <Events log={log} version={version} id={id} seq={seq} onSeq={setAt} step={step} />}
              {tab === "state" && <StateView requested={state} step={step} />}
              {tab === "results" && <Results requested={state} step={step} onSelect={select} />}
              {tab === "logs" && <Logs log={log} version={version} id={id} seq={seq} step={step} net={net.value} />}
            </div>
          </section>
        </div>
        <aside class="ex-side">
          {step && <StepPanel step={step} node={node} moment={moment} close={() => select(null)} rerun={canOperate ? () => setAsking("rerun") : null} />}
          <section class="card side" aria-label="Why">
            <h2>{ended && at === null ? "Result" : "Waiting for"}</h2>
            <Why requested={why} onSeq={setAt} failed={moment.status === "failed"} now={at === null && !ended ? null : moment.at} onSelect={select} />
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

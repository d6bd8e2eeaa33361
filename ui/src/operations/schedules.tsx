/** Playbooks that start by the clock: what ticks next, what came of the last tick, add, pause, remove. */
import { useEffect, useState } from "preact/hooks";
import { api, type Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, EmptyState, ErrorState, Loading, note } from "../frame/pieces";
import { Link } from "../frame/router";
import { useMay } from "../frame/session";
import { Time } from "../frame/times";
import { Above, Choice, deedThen, FormDialog, List, PlaybookField, Starter, Sure, TextField, wordsOf } from "./pieces";

interface Schedule {
  name: string;
  path: string;
  cron: string;
  tz: string;
  version: number | null;
  description: string;
  catch_up: string;
  overlap: string;
  paused: boolean;
  next_at: string | null;
  upcoming: string[];
  queued: string[];
  fired: number;
  skipped: number;
  last_tick: string | null;
  last_execution: string | null;
  last_error: string | null;
}

export function Schedules() {
  const { value, problem, again } = useFetched<Page<Schedule>>("/api/schedules", { limit: 500 }, 5000);
  const [adding, setAdding] = useState(false);
  const [leaving, setLeaving] = useState<string | null>(null);
  const mayAct = useMay("operator");
  if (problem && !value) return <ErrorState problem={problem} retry={again} />;
  if (!value) return <Loading what="Reading schedules" />;

  const act = deedThen(again);
  const remove = (name: string) => {
    setLeaving(null);
    void act(() => api.delete(route(name)), `Removed ${name}`);
  };
  const route = (name: string) => `/api/schedules/${encodeURIComponent(name)}`;
  const add = mayAct && (
    <Button kind="primary" onClick={() => setAdding(true)}>
      Add schedule
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No schedules yet" action={add}>
          <p>A schedule starts a playbook of the catalog by the clock, in the time zone you name. From a terminal:</p>
          <pre tabIndex={0}>noetl schedule add examples/hello --cron "30 6 * * mon-fri" --tz Europe/Berlin</pre>
        </EmptyState>
      ) : (
        <>
          <Above words="Times are shown in your own zone; hover for the exact instant.">{add}</Above>
          <List class="schedules" heads={["Schedule", "Starts", "Next", "Last", "Started"]}>
            {value.items.map((each) => (
              <tr key={each.name} class={each.paused ? "paused" : ""}>
                <Starter name={each.name} path={each.path} version={each.version} />
                <td>
                  <code>{each.cron}</code> <span class="quiet">{each.tz}</span>
                  <div class="quiet">{each.description}</div>
                </td>
                <td title={each.upcoming.join("\n")}>
                  {each.paused ? <span class="status paused"><i aria-hidden="true" />paused</span> : <Time at={each.next_at} />}
                  {each.queued.length > 0 && <div class="quiet">{each.queued.length} wait for their turn</div>}
                </td>
                <td>
                  {each.last_execution ? (
                    <Link to={`/executions/${each.last_execution}`} title="The execution it started last">
                      <Time at={each.last_tick} />
                    </Link>
                  ) : (
                    <Time at={each.last_tick} />
                  )}
                  {each.last_error && <div class="wrong clip" title={each.last_error}>{each.last_error}</div>}
                </td>
                <td class="number">
                  {each.fired}
                  {each.skipped > 0 && <div class="quiet">{each.skipped} skipped</div>}
                </td>
                <td class="right actions">
                  {mayAct && (
                    <>
                      <Button
                        class="small"
                        aria-label={`${each.paused ? "Resume" : "Pause"} ${each.name}`}
                        onClick={() => act(() => api.post(`${route(each.name)}/${each.paused ? "resume" : "pause"}`), each.paused ? `${each.name} ticks again` : `Paused ${each.name}`)}
                      >
                        {each.paused ? "Resume" : "Pause"}
                      </Button>{" "}
                      <Button class="small" kind="danger" aria-label={`Remove ${each.name}`} onClick={() => setLeaving(each.name)}>
                        Remove
                      </Button>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {adding && (
        <Add
          onClose={() => setAdding(false)}
          onDone={(name) => {
            setAdding(false);
            note(`Added ${name}`);
            again();
          }}
        />
      )}
      {leaving && (
        <Sure title={`Remove ${leaving}?`} action="Remove it" onClose={() => setLeaving(null)} onYes={() => remove(leaving)}>
          It starts nothing any more. Executions that it started go on.
        </Sure>
      )}
    </>
  );
}

const CATCH_UP: Record<string, string> = {
  last: "make up for the newest one",
  none: "let them go",
  all: "make up for every one",
};
const OVERLAP: Record<string, string> = {
  allow: "start another one beside it",
  skip: "skip this tick",
  queue: "wait for its turn",
  cancel: "cancel the running one and start",
};

interface Previewed {
  description: string;
  upcoming: string[];
}

function Add({ onClose, onDone }: { onClose: () => void; onDone: (name: string) => void }) {
  const [path, setPath] = useState("");
  const [name, setName] = useState("");
  const [cron, setCron] = useState("0 6 * * *");
  const [tz, setTz] = useState(() => Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  const [catchUp, setCatchUp] = useState("last");
  const [overlap, setOverlap] = useState("allow");
  const [payload, setPayload] = useState("");
  const [preview, setPreview] = useState<Previewed | null>(null);
  const [refused, setRefused] = useState("");

  useEffect(() => {
    let left = false;
    const timer = setTimeout(async () => {
      if (!cron.trim() || !tz.trim()) return;
      try {
        const found = await api.post<Previewed>("/api/schedules/preview", { cron: cron.trim(), tz: tz.trim(), count: 3 });
        if (!left) {
          setPreview(found);
          setRefused("");
        }
      } catch (error) {
        if (left) return;
        setPreview(null);
        setRefused(wordsOf(error));
      }
    }, 250);
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [cron, tz]);

  const save = async () => {
    if (!path.trim()) return "Name the playbook that shall start.";
    let given: unknown = {};
    if (payload.trim()) {
      const read = await api.post<{ values: Record<string, unknown>; problems: Record<string, string> }>("/api/values", { texts: { payload } });
      if (read.problems.payload) return `Payload: ${read.problems.payload}`;
      given = read.values.payload ?? {};
      if (typeof given !== "object" || Array.isArray(given)) return "The payload must be a mapping.";
    }
    const body = { path: path.trim(), cron: cron.trim(), tz: tz.trim(), name: name.trim() || null, payload: given, catch_up: catchUp, overlap };
    onDone((await api.post<Schedule>("/api/schedules", body)).name);
  };

  return (
    <FormDialog id="schedule-form" title="Add a schedule" action="Add" disabled={!!refused} onClose={onClose} onSave={save}>
      <div class="pair">
        <PlaybookField id="schedule-path" value={path} onInput={setPath} />
        <TextField id="schedule-name" label="Name" hint="after the path, if empty" value={name} onInput={setName} />
      </div>
      <div class="pair">
        <div>
          <label for="schedule-cron">When (cron)</label>
          <input id="schedule-cron" type="text" class="mono" value={cron} spellcheck={false} aria-describedby="schedule-preview" aria-invalid={refused ? "true" : undefined} onInput={(event) => setCron(event.currentTarget.value)} />
        </div>
        <TextField id="schedule-tz" label="Time zone" offered={ZONES} value={tz} onInput={setTz} />
      </div>
      <div id="schedule-preview" class="ticks" role="status">
        {refused && <p class="wrong">{refused}</p>}
        {preview && (
          <>
            <p>{preview.description}</p>
            <p class="quiet">
              next:{" "}
              {preview.upcoming.length
                ? preview.upcoming.map((each, index) => (
                    <span key={each}>
                      {index > 0 && ", "}
                      <Time at={each} />
                    </span>
                  ))
                : "never"}
            </p>
          </>
        )}
      </div>
      <div class="pair">
        <Choice id="schedule-catch-up" label="Ticks missed while no server ran" value={catchUp} onChange={setCatchUp} choices={CATCH_UP} />
        <Choice id="schedule-overlap" label="When the one before still runs" value={overlap} onChange={setOverlap} choices={OVERLAP} />
      </div>
      <div class="whole">
        <label for="schedule-payload">
          Payload <span class="quiet">(YAML or JSON, merged over the workload)</span>
        </label>
        <textarea id="schedule-payload" rows={2} spellcheck={false} value={payload} onInput={(event) => setPayload(event.currentTarget.value)} />
      </div>
    </FormDialog>
  );
}

const ZONES: string[] = (Intl as any).supportedValuesOf?.("timeZone") ?? [];

/** Playbooks that start by the clock: what ticks next, what came of the last tick, add, pause, remove. */
import { useEffect, useState } from "preact/hooks";
import { api, Problem, type Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, Dialog, EmptyState, ErrorState, Loading, note, noteProblem } from "../frame/pieces";
import { Link } from "../frame/router";
import { useMay } from "../frame/session";
import { Time } from "../frame/times";
import { placeOf } from "../playbooks/playbook";
import { PlaybookField, Sure } from "./pieces";

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

  const act = async (deed: () => Promise<unknown>, words: string) => {
    try {
      await deed();
      note(words);
      again();
    } catch (error) {
      noteProblem(error);
    }
  };
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
          <p>A schedule starts a playbook of the catalogue by the clock, in the time zone you name. From a terminal:</p>
          <pre tabIndex={0}>noetl schedule add examples/hello --cron "30 6 * * mon-fri" --tz Europe/Berlin</pre>
        </EmptyState>
      ) : (
        <>
          <div class="row spaced">
            <p class="quiet grow">Times are shown in your own zone; hover for the exact instant.</p>
            {add}
          </div>
          <div class="card scrolled">
            <table class="list schedules">
              <thead>
                <tr>
                  <th>Schedule</th>
                  <th>Starts</th>
                  <th>Next</th>
                  <th>Last</th>
                  <th class="right">Started</th>
                  <th>
                    <span class="unseen">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {value.items.map((each) => (
                  <tr key={each.name} class={each.paused ? "paused" : ""}>
                    <td>
                      <strong>{each.name}</strong>
                      <div>
                        <Link to={placeOf(each.path)}>{each.path}</Link>
                        {each.version !== null && <span class="quiet number"> v{each.version}</span>}
                      </div>
                    </td>
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
                    <td class="right number">
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
              </tbody>
            </table>
          </div>
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
  const [wrong, setWrong] = useState("");

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
        setRefused(error instanceof Problem ? error.message : String(error));
      }
    }, 250);
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [cron, tz]);

  const save = async (event: Event) => {
    event.preventDefault();
    setWrong("");
    if (!path.trim()) return setWrong("Name the playbook that shall start.");
    try {
      let given: unknown = {};
      if (payload.trim()) {
        const read = await api.post<{ values: Record<string, unknown>; problems: Record<string, string> }>("/api/values", { texts: { payload } });
        if (read.problems.payload) return setWrong(`Payload: ${read.problems.payload}`);
        given = read.values.payload ?? {};
        if (typeof given !== "object" || Array.isArray(given)) return setWrong("The payload must be a mapping.");
      }
      const body = { path: path.trim(), cron: cron.trim(), tz: tz.trim(), name: name.trim() || null, payload: given, catch_up: catchUp, overlap };
      onDone((await api.post<Schedule>("/api/schedules", body)).name);
    } catch (error) {
      setWrong(error instanceof Problem ? error.message : String(error));
    }
  };

  return (
    <Dialog
      title="Add a schedule"
      onClose={onClose}
      actions={
        <Button kind="primary" type="submit" form="schedule-form" disabled={!!refused}>
          Add
        </Button>
      }
    >
      <form id="schedule-form" class="fields" onSubmit={save} noValidate>
        <div class="pair">
          <PlaybookField id="schedule-path" value={path} onInput={setPath} />
          <div>
            <label for="schedule-name">
              Name <span class="quiet">(after the path, if empty)</span>
            </label>
            <input id="schedule-name" type="text" value={name} spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />
          </div>
        </div>
        <div class="pair">
          <div>
            <label for="schedule-cron">When (cron)</label>
            <input id="schedule-cron" type="text" class="mono" value={cron} spellcheck={false} aria-describedby="schedule-preview" aria-invalid={refused ? "true" : undefined} onInput={(event) => setCron(event.currentTarget.value)} />
          </div>
          <div>
            <label for="schedule-tz">Time zone</label>
            <input id="schedule-tz" type="text" list="schedule-zones" value={tz} spellcheck={false} onInput={(event) => setTz(event.currentTarget.value)} />
            <datalist id="schedule-zones">
              {ZONES.map((each) => (
                <option key={each} value={each} />
              ))}
            </datalist>
          </div>
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
          <div>
            <label for="schedule-catch-up">Ticks missed while no server ran</label>
            <select id="schedule-catch-up" value={catchUp} onChange={(event) => setCatchUp(event.currentTarget.value)}>
              {Object.entries(CATCH_UP).map(([key, words]) => (
                <option key={key} value={key}>
                  {words}
                </option>
              ))}
            </select>
          </div>
          <div>
            <label for="schedule-overlap">When the one before still runs</label>
            <select id="schedule-overlap" value={overlap} onChange={(event) => setOverlap(event.currentTarget.value)}>
              {Object.entries(OVERLAP).map(([key, words]) => (
                <option key={key} value={key}>
                  {words}
                </option>
              ))}
            </select>
          </div>
        </div>
        <div class="whole">
          <label for="schedule-payload">
            Payload <span class="quiet">(YAML or JSON, merged over the workload)</span>
          </label>
          <textarea id="schedule-payload" rows={2} spellcheck={false} value={payload} onInput={(event) => setPayload(event.currentTarget.value)} />
        </div>
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
      </form>
    </Dialog>
  );
}

const ZONES: string[] = (Intl as any).supportedValuesOf?.("timeZone") ?? [];

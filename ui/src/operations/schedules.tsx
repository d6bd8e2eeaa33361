/** Schedules: next and last start, calendar; add, edit, run now, pause, resume, backfill, delete. */
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading, notify } from "../common/components";
import { go, Link, useQueryValue } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { actThenReload, ConfirmDialog, List, ListHeader, NameCell, RowButton } from "./components";
import { Calendar } from "./schedule_calendar";
import { ScheduleForm, type Schedule } from "./schedule_form";

export function Schedules() {
  const { value, problem, reload } = useFetch<Page<Schedule>>("/api/schedules", { limit: 500 }, 3000);
  const [adding, setAdding] = useState(false);
  const [editing, setEditing] = useQueryValue("edit");
  const [view, setView] = useQueryValue("view", "list");
  const [removing, setRemoving] = useState<string | null>(null);
  const canEdit = useHasRole("operator");
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading schedules" />;

  const edited = canEdit ? value.items.find((each) => each.name === editing) : undefined;
  const act = actThenReload(reload);
  const remove = (name: string) => {
    setRemoving(null);
    void act(() => api.delete(route(name)), `Deleted ${name}`);
  };
  const route = (name: string) => `/api/schedules/${encodeURIComponent(name)}`;
  const add = canEdit && (
    <Button kind="primary" onClick={() => setAdding(true)}>
      Add schedule
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No schedules yet" action={add}>
          <p>A schedule starts a playbook of the catalog at times given by a cron expression and a time zone. From a terminal:</p>
          <pre tabIndex={0}>noetl schedule add examples/hello --cron "30 6 * * mon-fri" --tz Europe/Berlin</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Times are shown in your time zone; hover to see the exact time.">
            <div class="chips" role="group" aria-label="View">
              {["list", "calendar"].map((each) => (
                <button key={each} type="button" class="chip" aria-pressed={view === each} onClick={() => setView(each)}>
                  {each}
                </button>
              ))}
            </div>
            {add}
          </ListHeader>
          {view === "calendar" && <Calendar onOpen={setEditing} />}
          {view !== "calendar" && <List class="schedules" heads={["Schedule", "Cron", "Next run", "Last run", "Started"]}>
            {value.items.map((each) => (
              <tr key={each.name} class={each.paused ? "paused" : ""}>
                <NameCell name={each.name} path={each.path} version={each.version} />
                <td>
                  <code>{each.cron}</code> <span class="quiet">{each.tz}</span>
                  <div class="quiet">{each.description}</div>
                </td>
                <td title={each.upcoming.join("\n")}>
                  {each.paused ? <span class="status paused"><i aria-hidden="true" />paused</span> : <Time at={each.next_at} />}
                  {each.queued.length > 0 && <div class="quiet">{each.queued.length} queued</div>}
                </td>
                <td>
                  {each.last_execution ? (
                    <Link to={`/executions/${each.last_execution}`} title="Last execution">
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
                  {each.late > 0 && <div class="wrong">{each.late} late</div>}
                </td>
                <td class="right actions">
                  {canEdit && (
                    <>
                      <RowButton action="Run now" name={each.name} onClick={() => act(() => api.post(`${route(each.name)}/run`), `Started ${each.path}`)} />{" "}
                      <RowButton action="Edit" name={each.name} onClick={() => setEditing(each.name)} />{" "}
                      <RowButton action="Backfill" name={each.path} onClick={() => go(`/operations/backfills?path=${encodeURIComponent(each.path)}`)} />{" "}
                      <RowButton
                        action={each.paused ? "Resume" : "Pause"}
                        name={each.name}
                        onClick={() => act(() => api.post(`${route(each.name)}/${each.paused ? "resume" : "pause"}`), `${each.paused ? "Resumed" : "Paused"} ${each.name}`)}
                      />{" "}
                      <RowButton action="Delete" name={each.name} kind="danger" onClick={() => setRemoving(each.name)} />
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>}
        </>
      )}
      {adding && (
        <ScheduleForm
          known={null}
          onClose={() => setAdding(false)}
          onDone={(name) => {
            setAdding(false);
            notify(`Added ${name}`);
            reload();
          }}
        />
      )}
      {edited && (
        <ScheduleForm
          key={edited.name}
          known={edited}
          onClose={() => setEditing("")}
          onDone={(name) => {
            setEditing("");
            notify(`Saved ${name}`);
            reload();
          }}
        />
      )}
      {removing && (
        <ConfirmDialog title={`Delete ${removing}?`} action="Delete" onClose={() => setRemoving(null)} onConfirm={() => remove(removing)}>
          It starts no more executions. Executions that it has started continue.
        </ConfirmDialog>
      )}
    </>
  );
}

/** The HTTP API: one client, problems as exceptions, and the session cookie that scripts cannot read. */
import { prefix } from "./router";

export interface Diagnostic {
  file: string;
  line: number;
  column: number;
  end_line: number;
  end_column: number;
  code: string;
  severity: "error" | "warning";
  message: string;
  hint: string | null;
}

/** A problem document (RFC 9457), or what stands for one when no server answered. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly diagnostics: Diagnostic[] = [],
  ) {
    super(detail || title);
  }
  /** No server answered: worth another try. */
  get away() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

type Params = Record<string, string | number | boolean | null | undefined | string[]>;

export function address(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (Array.isArray(value)) value.forEach((each) => query.append(key, each));
    else if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  const text = query.toString();
  return prefix + path + (text ? `?${text}` : "");
}

let onSignedOut = () => {};
export const whenSignedOut = (tell: () => void) => {
  onSignedOut = tell;
};

let ahead = 0;

/** How far the server's clock is from ours, from its own answers; what is within their precision counts as nothing. */
function keepTime(response: Response) {
  const said = Date.parse(response.headers.get("date") ?? "");
  if (!Number.isNaN(said)) ahead = Math.abs(said - Date.now()) > 3000 ? said - Date.now() : 0;
}

/** The time as the server has it, in ms. */
export const serverNow = () => Date.now() + ahead;

export async function problemOf(response: Response): Promise<Problem> {
  let said: Record<string, unknown> = {};
  try {
    said = await response.json();
  } catch {
    // a proxy's own page: the status says enough
  }
  return new Problem(
    response.status,
    String(said.title ?? response.statusText),
    String(said.detail ?? `the server answered ${response.status}`),
    (said.diagnostics as Diagnostic[]) ?? [],
  );
}

/** A request as `fetch` makes it; anything but success is thrown as a Problem. */
export async function request(method: string, path: string, init: RequestInit & { params?: Params } = {}): Promise<Response> {
  const { params, ...rest } = init;
  let response: Response;
  try {
    response = await fetch(address(path, params), { method, credentials: "same-origin", ...rest });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer", "Is it running? The page tries again by itself.");
  }
  keepTime(response);
  if (response.ok) return response;
  if (response.status === 401) onSignedOut();
  throw await problemOf(response);
}

async function send<T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const response = await request(method, path, {
    body: body === undefined ? undefined : JSON.stringify(body),
    headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
  });
  return (response.status === 204 ? undefined : await response.json()) as T;
}

export const api = {
  get: async <T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> =>
    (await (await request("GET", path, { params, signal })).json()) as T,
  post: <T>(path: string, body?: unknown, headers?: Record<string, string>) => send<T>("POST", path, body, headers),
  put: <T>(path: string, body?: unknown) => send<T>("PUT", path, body),
  delete: <T>(path: string) => send<T>("DELETE", path),
};

/** A key that makes a `POST` that starts work safe to send twice: `{"Idempotency-Key": ...}`. */
export const once = () => ({ "Idempotency-Key": crypto.getRandomValues(new Uint32Array(4)).join("-") });

export interface Page<T> {
  items: T[];
  next: string | null;
}

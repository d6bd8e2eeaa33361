/** A playbook of the catalog, as the API tells it, and where its page is. */
import type { Diagnostic } from "../frame/api";

export interface Stored {
  path: string;
  version: number;
  digest: string;
  registered_at: string;
  name: string;
  description: string;
  steps: number;
  content?: string;
}

export interface Checked {
  valid: boolean;
  diagnostics: Diagnostic[];
  docs: string;
}

const encoded = (path: string) => path.split("/").map(encodeURIComponent).join("/");

/** The address of a playbook's page. */
export const placeOf = (path: string) => `/playbooks/${encoded(path)}`;

/** The API's address of a playbook. */
export const routeOf = (path: string) => `/api/catalog/${encoded(path)}`;
export const versionsOf = (path: string) => `/api/versions/${encoded(path)}`;

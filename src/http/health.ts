import { scrub } from '../log'

/** What the health endpoints read. All values come from memory: a probe causes no I/O. */
export type HealthSources = {
  /** Whether at least one route can be sold now. */
  canSell(): boolean
  networks(): readonly {
    network: string
    ready: boolean
    reason?: string | undefined
    /** What an operator must do about the reason, where it is known. */
    remedy?: string | undefined
    /** How far our clock may be ahead of the chain's, ms; infinite when unknown. */
    clockAheadMs: { min: number; max: number }
  }[]
  /**
   * Merchants that are configured but not served, with the reason: a variable's name, never its
   * value.
   */
  merchantsOutOfService(): readonly { merchant: string; reason: string }[]
  /** Networks whose budget for sponsoring is spent, with the reason. */
  spentBudgets(): Promise<readonly { network: string; reason: string }[]>
  /** Merchants with an upstream whose circuit is open. */
  openCircuits(): readonly string[]
  /** The database that cannot be read or written, with the code of the error. */
  storageFaults(): readonly { file: string; reason: string }[]
  /** Domains of HTTPS without a valid certificate, or with one that is not renewed in time. */
  certificateFaults(): readonly { domain: string; reason: string }[]
  /** The database server; undefined when the database is a file. */
  database?: DatabaseServer
}

type DatabaseServer = {
  /** How far the clock of the server is ahead of ours, ms. */
  aheadMs(): number
  /** Why the service must not sell because of it. */
  reason(): string | undefined
  /** Which standby would keep acknowledged commits if the primary were lost. */
  standby(): string
}

/**
 * `GET /healthz`: 200 as soon as something can be sold, else 503; for load balancers.
 *
 * `GET /readyz`: 200 when all that is configured works, else 503 with what does not work; for
 * operators and alarms. It also reports how far the clock is ahead of each network's newest blocks
 * (`[least, most]` in ms, null: unknown). The answer is public, so `scrub` filters the reasons. It
 * names merchants and never the hosts of their upstreams, which may be private.
 */
export function createHealth(sources: HealthSources) {
  const healthz = (): Response => {
    const ok = sources.canSell()
    return answer(ok, { status: ok ? 'ok' : 'unavailable' })
  }
  const readyz = async (): Promise<Response> => {
    const { database } = sources
    const fault = database?.reason()
    const notReady = {
      networks: sources
        .networks()
        .filter((network) => !network.ready)
        .map(({ network, reason, remedy }) => ({
          network,
          reason: scrub(reason ?? 'unknown'),
          ...(remedy === undefined ? {} : { remedy }),
        })),
      merchants: sources
        .merchantsOutOfService()
        .map(({ merchant, reason }) => ({ merchant, reason: scrub(reason) })),
      sponsor: await sources.spentBudgets(),
      circuits: sources.openCircuits(),
      storage: sources.storageFaults(),
      certificates: sources
        .certificateFaults()
        .map(({ domain, reason }) => ({ domain, reason: scrub(reason) })),
      ...(database && { database: fault === undefined ? [] : [{ reason: scrub(fault) }] }),
    }
    const ok = Object.values(notReady).every((list) => list.length === 0)
    const networks = sources.networks().map(({ network, clockAheadMs: { min, max } }) => ({
      network,
      clockAheadMs: [known(min), known(max)],
    }))
    const server = database && {
      standby: database.standby(),
      clockAheadMs: known(database.aheadMs()),
    }
    const status = ok ? 'ok' : 'not-ready'
    return answer(ok, { status, notReady, networks, ...(server && { database: server }) })
  }
  return { healthz, readyz }
}

function answer(ok: boolean, body: Record<string, unknown>): Response {
  const headers = { 'Cache-Control': 'no-store', ...(ok ? {} : { 'Retry-After': '2' }) }
  return Response.json(body, { status: ok ? 200 : 503, headers })
}

function known(ms: number): number | null {
  return Number.isFinite(ms) ? Math.round(ms) : null
}

import type { Bounds, Subscriptions, WebhookLedger } from '../../db/webhooks'
import type { Config, NetworkConfig, Webhook } from '../config/Config'
import type { Log } from '../log'
import { headersOf, typesOf } from '../protocol/Webhook'
import type { Meter } from '../settlement/state/metrics'
import { type AlertsWatched, createAlertWatch, type Failed } from './alert-watch'
import { createConditionWatch } from './operator-alerts'
import { type Place, type PlaceOptions, placeOf } from './places'
import { createPost, type Post } from './post'
import {
  createEndpoint,
  type Endpoint,
  type SendingOptions,
  sendDue,
  type Target,
} from './retry-or-disable'

/** Time between two looks for messages whose time has come or that an operator sends again, ms. */
const pollMs = 1_000
/** Time from a start without endpoints to the look for messages of an earlier process, ms. */
const recoverAfterMs = 500

export type WebhooksOptions = {
  ledger: WebhookLedger
  config: Config
  meter: Meter
  log: Log
  /** Unix ms. */
  now: () => number
  /** How names are resolved, certificates are trusted and time is limited; for tests. */
  posting?: (Omit<PlaceOptions, 'now'> & { alertAfterMs?: number }) | undefined
}

export type Webhooks = ReturnType<typeof startWebhooks>

/**
 * Subscribes to events, and sends their messages in the background. Without endpoints it does
 * nothing.
 */
export function startWebhooks(options: WebhooksOptions) {
  const { ledger, meter, now, log, posting } = options
  const { networks } = options.config
  let targets: readonly Target[] = []
  let places: readonly Place[] = []
  const post = createPost({ ...posting, now })
  const about = 'Attempts and ends of webhook messages.'
  const results = meter.counter('webhooks_total', about, ['result'])
  const sender = createSender({
    ledger,
    now,
    random: Math.random,
    ended: (result, by = 1) => {
      if (by > 0) results.inc({ result }, by)
    },
    gasPerDay: networks.flatMap(gasPerDayOf),
    log,
  })
  showWaiting(meter, async () => {
    const counts = await ledger.countWaiting()
    return new Map([...targets.map(({ id }) => [id, 0] as const), ...counts])
  })
  const fault = (error: unknown) => log('webhook-fault', { error })
  let timer: ReturnType<typeof setInterval> | undefined
  let looks: readonly (() => Promise<void>)[] = []
  let alerts: ReturnType<typeof createAlertWatch> | undefined
  const poll = () => {
    for (const look of looks) look().catch(fault)
    sender.poll().catch(fault)
  }
  const apply = (wanted: Config) => {
    places = wanted.alerts.map((alert) => placeOf(alert, wanted, { ...posting, now, post }))
    targets = [...wanted.webhooks.map((webhook) => endpointOf(webhook, post, now)), ...places]
    sender.apply(targets)
    clearInterval(timer)
    timer = targets.length === 0 ? undefined : setInterval(poll, pollMs)
  }
  apply(options.config)
  const recover = () => {
    sender.recover().catch(fault)
  }
  // Without endpoints this only gives up messages of removed ones, so it may follow the start.
  const recovery = targets.length === 0 ? setTimeout(recover, recoverAfterMs) : recover()
  return {
    /** Sends to these endpoints from now on. */
    apply,
    /** Reports what fails and recovers. Call it when each network was checked once. */
    watch(watched: AlertsWatched): void {
      const { alertAfterMs: lastsMs } = posting ?? {}
      alerts = createAlertWatch({ ledger, watched, places: () => places, lastsMs, now })
      looks = [createConditionWatch({ ledger, watched, now }), alerts.look]
    },
    /** A confirmed payment was not delivered, because its upstream failed. */
    undelivered: (failed: Failed) => alerts?.undelivered(failed),
    /** Begins nothing new; resolves when nothing is in progress. */
    async stop(limitMs: number): Promise<void> {
      clearInterval(timer)
      if (recovery !== undefined) clearTimeout(recovery)
      await sender.stop(limitMs)
    },
  }
}

/** The endpoint of a configuration, whose messages are signed. */
export function endpointOf(webhook: Webhook, post: Post, now: () => number): Target {
  const { id, url, events, secrets } = webhook
  return {
    ...{ id, origin: url.origin, types: typesOf(events) },
    send({ id, body }, signal) {
      const timestamp = Math.floor(now() / 1000)
      const headers = headersOf({ id, timestamp, body }, secrets)
      return post(webhook, { headers, body }, signal)
    },
  }
}

/** Shows the number of messages that wait, by endpoint. One that was removed has none. */
function showWaiting(meter: Meter, waiting: () => Promise<ReadonlyMap<string, number>>): void {
  const about = 'Webhook messages that are not delivered yet.'
  const gauge = meter.gauge('webhooks_waiting', about, ['endpoint'])
  const seen = new Set<string>()
  meter.onRender(async () => {
    const counts = await waiting()
    for (const endpoint of counts.keys()) seen.add(endpoint)
    for (const endpoint of seen) gauge.set(counts.get(endpoint) ?? 0, { endpoint })
  })
}

/** The sponsor is missing here, because its budget is counted where grants are written. */
function gasPerDayOf({ id, gasPerDayWei }: NetworkConfig): Subscriptions['gasPerDay'] {
  const { gateway, facilitator, desk, channels } = gasPerDayWei
  return [
    { network: id, product: 'gateway', wei: gateway },
    { network: id, product: 'facilitator', wei: facilitator },
    { network: id, product: 'desk', wei: desk },
    { network: id, product: 'channels', wei: channels },
  ]
}

/** Time between two sweeps, ms. */
const sweepMs = 10_000
/** Messages that were not sent because no process ran live at least this long after a start, ms. */
const prolongedMs = 3_600_000
/** Longest wait of a stop for attempts in progress, ms. */
const stopMaxMs = 2_000

const defaultBounds: Bounds = {
  waitingMax: 10_000,
  endedMax: 10_000,
  endedMs: 7 * 86_400_000,
}

export type SenderOptions = Omit<SendingOptions, 'onGone'> & {
  gasPerDay: Subscriptions['gasPerDay']
  bounds?: Bounds | undefined
}

/**
 * Sends the messages of the outbox. Endpoints do not wait for each other: each has its own places
 * and its own pauses.
 */
export function createSender(options: SenderOptions) {
  const { ledger } = options
  const attempts = new AbortController()
  /** Includes endpoints of an earlier configuration whose attempts have not ended. */
  const endpoints = new Map<string, Endpoint>()
  const state = { isSending: false, isWoken: false }
  const subscribe = () =>
    ledger.subscribe({
      endpoints: [...endpoints.values()].filter(isUsed).map(subscriptionOf),
      gasPerDay: options.gasPerDay,
    })
  const sending: SendingOptions = { ...options, onGone: subscribe }
  const sendAllDue = () => {
    if (!state.isSending) return
    for (const endpoint of endpoints.values()) void sendDue(sending, endpoint, attempts.signal)
  }
  // After this turn of the event loop its commits have ended, and one look finds all of them.
  ledger.onMessage(() => {
    if (state.isWoken) return
    state.isWoken = true
    setImmediate(() => {
      state.isWoken = false
      sendAllDue()
    })
  })
  const sweep = createSweep(options, () =>
    [...endpoints.values()].filter(isUsed).map(({ config }) => config.id),
  )
  return {
    /** Sends to these endpoints from now on. One that answered 410 is tried again. */
    apply(wanted: readonly Target[]): void {
      replace(endpoints, wanted)
      subscribe()
      sendAllDue()
    },
    /** Begins to send, first what an earlier process left. */
    async recover(): Promise<void> {
      await ledger.prolong([...endpoints.keys()], options.now() + prolongedMs)
      await sweep()
      state.isSending = true
      sendAllDue()
    },
    /** Begins to send what is due, and sweeps from time to time. */
    async poll(): Promise<void> {
      if (!state.isSending) return
      sendAllDue()
      await sweep()
    },
    /** Resolves when no attempt is in progress. */
    idle: () => idle(endpoints),
    /** Begins nothing new; resolves when the attempts in progress have ended, soon. */
    async stop(limitMs: number): Promise<void> {
      state.isSending = false
      for (const endpoint of endpoints.values()) endpoint.isEnded = true
      const timer = setTimeout(() => attempts.abort(), Math.min(limitMs, stopMaxMs))
      await Promise.all([idle(endpoints), sweep.ended()])
      clearTimeout(timer)
    },
  }
}

/** Keeps the attempts of an endpoint that stays, so that no message is sent twice at once. */
function replace(endpoints: Map<string, Endpoint>, wanted: readonly Target[]): void {
  for (const [id, endpoint] of endpoints) {
    endpoint.isEnded = true
    if (endpoint.inFlight.size === 0) endpoints.delete(id)
  }
  for (const config of wanted) {
    const { inFlight, look, ...fresh } = createEndpoint(config)
    const known = endpoints.get(config.id)
    endpoints.set(config.id, known ? Object.assign(known, fresh) : { ...fresh, inFlight, look })
  }
}

function isUsed({ isEnded }: Endpoint): boolean {
  return !isEnded
}

function subscriptionOf({ config }: Endpoint): Subscriptions['endpoints'][number] {
  return { endpoint: config.id, origin: config.origin, types: config.types }
}

/** At most one sweep at a time, and one in ten seconds. */
function createSweep({ ledger, ended, bounds, now, log }: SenderOptions, ids: () => string[]) {
  let current: Promise<void> | undefined
  let last = Number.NEGATIVE_INFINITY
  const run = async () => {
    try {
      for (const each of await ledger.sweep(now(), ids(), bounds ?? defaultBounds)) {
        ended(each.reason, each.count)
        log('webhook-lost', each)
      }
    } catch (error) {
      log('webhook-fault', { error })
    }
    current = undefined
  }
  const sweep = async () => {
    if (current === undefined && now() < last + sweepMs) return
    last = now()
    current ??= run()
    await current
  }
  return Object.assign(sweep, { ended: async () => current })
}

async function idle(endpoints: ReadonlyMap<string, Endpoint>): Promise<void> {
  const isBusy = ({ look, inFlight }: Endpoint) => look !== 'no' || inFlight.size > 0
  while ([...endpoints.values()].some(isBusy)) {
    const attempts = [...endpoints.values()].flatMap(({ inFlight }) => [...inFlight.values()])
    // Without attempts in progress, waits for one turn: a look only reads the database.
    await (attempts.length > 0 ? Promise.race(attempts) : new Promise(setImmediate))
  }
}

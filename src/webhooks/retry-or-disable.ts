import type { Message, SweepReason, WebhookLedger } from '../../db/webhooks'
import type { Log } from '../log'
import type { EventType } from '../protocol/Webhook'
import type { PostAnswer } from './post'

/** Messages of one endpoint that are sent at once. */
const concurrencyMax = 16
/** Pause after a result that could not be written, so that the message is not sent in a loop, ms. */
const unwrittenMs = 5_000

export type SendingOptions = {
  ledger: WebhookLedger
  /** Unix ms. */
  now: () => number
  /** A random number of at least 0 and below 1. */
  random: () => number
  /** Counts results. `retried`: an attempt that another one follows. All others end a message. */
  ended(result: 'delivered' | 'retried' | 'gone' | SweepReason, by?: number): void
  /** An endpoint answered 410: it wants no more messages. */
  onGone: () => void
  log: Log
}

/** Where messages go: an endpoint of `[[webhooks]]`, or a place of `[[alerts]]`. */
export type Target = {
  id: string
  /** Scheme, host and port, for operators. */
  origin: string
  /** Types of events whose messages the commits write. */
  types: readonly EventType[]
  /** Sends one message once. Never rejects. */
  send(message: Pick<Message, 'id' | 'body'>, signal: AbortSignal): Promise<PostAnswer>
}

/** The state of one endpoint while the process runs. */
export type Endpoint = {
  config: Target
  /** Attempts in progress by the `seq` of their message. */
  inFlight: Map<number, Promise<void>>
  /** Failures since the last success that say that the endpoint does not work. */
  failures: number
  /** Nothing is sent before this time. */
  pausedUntil: number
  /** It answered 410, or it is no longer configured. */
  isEnded: boolean
  /** A look for messages is in progress; another one must follow it. */
  look: 'no' | 'running' | 'again'
}

export function createEndpoint(config: Target): Endpoint {
  return {
    config,
    inFlight: new Map(),
    failures: 0,
    pausedUntil: 0,
    isEnded: false,
    look: 'no',
  }
}

/** Sends the due messages of an endpoint as far as it may have more in progress. Never rejects. */
export async function sendDue(
  options: SendingOptions,
  endpoint: Endpoint,
  signal: AbortSignal,
): Promise<void> {
  if (endpoint.look !== 'no') {
    endpoint.look = 'again'
    return
  }
  do {
    endpoint.look = 'running'
    try {
      await start(options, endpoint, signal)
    } catch (error) {
      fail(options, endpoint, error)
    }
  } while (isAgain(endpoint))
  endpoint.look = 'no'
}

function isAgain({ look }: Endpoint): boolean {
  return look === 'again'
}

/** Number of attempts that may begin now. */
function freePlaces(endpoint: Endpoint, at: number, signal: AbortSignal): number {
  if (signal.aborted || endpoint.isEnded || at < endpoint.pausedUntil) return 0
  // A failing endpoint gets one message at a time, to find out whether it works again.
  const most = endpoint.failures < failuresMax ? concurrencyMax : 1
  return Math.max(0, most - endpoint.inFlight.size)
}

async function start(
  options: SendingOptions,
  endpoint: Endpoint,
  signal: AbortSignal,
): Promise<void> {
  const { inFlight, config } = endpoint
  const at = options.now()
  if (freePlaces(endpoint, at, signal) === 0) return
  // The longest due messages may all be in progress.
  const due = await options.ledger.due({ endpoint: config.id, at, limit: 2 * concurrencyMax })
  // Answers that came during this read may have paused or ended the endpoint. Nothing below awaits,
  // so no other look can start the same messages.
  const free = due.filter(({ seq }) => !inFlight.has(seq))
  for (const message of free.slice(0, freePlaces(endpoint, at, signal))) {
    const attempt = send(options, endpoint, message, signal).finally(() => {
      inFlight.delete(message.seq)
      void sendDue(options, endpoint, signal)
    })
    inFlight.set(message.seq, attempt)
  }
}

/** One attempt and its record. Never rejects. */
async function send(
  options: SendingOptions,
  endpoint: Endpoint,
  message: Message,
  signal: AbortSignal,
): Promise<void> {
  const answer = await endpoint.config.send(message, signal)
  // The stop of the process ended the attempt: the next start repeats it.
  if ('error' in answer && signal.aborted) return
  try {
    await record(options, endpoint, message, answer)
  } catch (error) {
    fail(options, endpoint, error)
  }
}

/** The database failed. */
function fail({ now, log }: SendingOptions, endpoint: Endpoint, error: unknown): void {
  endpoint.pausedUntil = Math.max(endpoint.pausedUntil, now() + unwrittenMs)
  log('webhook-fault', { ...nameOf(endpoint), error })
}

async function record(
  options: SendingOptions,
  endpoint: Endpoint,
  message: Message,
  answer: PostAnswer,
): Promise<void> {
  const { ledger, ended, now } = options
  const at = now()
  const status = 'status' in answer ? answer.status : undefined
  const attempt = { seq: message.seq, status, error: undefined, at }
  if (status !== undefined && status >= 200 && status < 300) {
    if (endpoint.failures >= failuresMax) options.log('webhook-recovered', nameOf(endpoint))
    endpoint.failures = 0
    await ledger.delivered(attempt)
    ended('delivered')
    return
  }
  if (status === 410) {
    await ledger.failed({ ...attempt, error: 'gone' })
    ended('gone')
    await disable(options, endpoint)
    return
  }
  const wait = note(options, endpoint, answer)
  const dueAt = at + Math.max(delayMs(message.attempts + 1, options.random()), wait)
  const { expiresAt } = message
  const error = 'error' in answer ? answer.error : undefined
  // The last attempt is at the end of the message's time. After that the sweep gives it up.
  await ledger.retry({ ...attempt, error }, at < expiresAt ? Math.min(dueAt, expiresAt) : dueAt)
  ended('retried')
}

/** Counts a failure of the endpoint. Returns the wait that it requires, ms. */
function note(
  { now, random, log }: SendingOptions,
  endpoint: Endpoint,
  answer: PostAnswer,
): number {
  const at = now()
  const isError = 'error' in answer
  // Other statuses are about one message: the endpoint itself works.
  const isFailure = isError || answer.status >= 500 || answer.status === 429
  const wait = isError ? 0 : retryAfterMs(answer.retryAfter, at)
  // During its pause only earlier attempts end, and all of them count as one failure.
  if (!isFailure || at < endpoint.pausedUntil) return wait
  endpoint.failures++
  const pause = Math.max(wait, pauseMs(endpoint.failures, random()))
  endpoint.pausedUntil = Math.max(endpoint.pausedUntil, at + pause)
  if (endpoint.failures === failuresMax) {
    const result = isError ? { reason: answer.error } : { status: answer.status }
    log('webhook-failing', { ...nameOf(endpoint), ...result })
  }
  return wait
}

/** The endpoint wants no more messages: 410 of Standard Webhooks. */
async function disable(
  { ledger, ended, now, onGone, log }: SendingOptions,
  endpoint: Endpoint,
): Promise<void> {
  if (endpoint.isEnded) return
  endpoint.isEnded = true
  onGone()
  const given = await ledger.giveUp(endpoint.config.id, 'gone', now())
  ended('gone', given)
  log('webhook-disabled', { ...nameOf(endpoint), status: 410, givenUp: given })
}

/** The name of an endpoint in log lines, without its path. */
function nameOf({ config }: Pick<Endpoint, 'config'>) {
  return { endpoint: config.id, origin: config.origin }
}

/** When a message that was not accepted is sent again. */

const firstMs = 5_000
const growth = 3
const longestMs = 2 * 3_600_000
/** Longest wait that an endpoint may require by Retry-After, ms. */
const retryAfterMaxMs = 3_600_000

/** Wait after so many attempts, at least one, ms: 5 s, 15 s, .., 2 h. `random`: 0 to 1. */
function delayMs(attempts: number, random: number): number {
  const wait = Math.min(longestMs, firstMs * growth ** (attempts - 1))
  // Spreads the messages of one failure over time.
  return Math.round(wait * (0.75 + random / 2))
}

/** The time that Retry-After asks for, seconds or a date, at most an hour; 0 without one. */
function retryAfterMs(header: string | null, now: number): number {
  if (header === null) return 0
  const text = header.trim()
  const ms = /^\d{1,9}$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - now
  return Number.isNaN(ms) ? 0 : Math.min(retryAfterMaxMs, Math.max(0, ms))
}

/** Failures in a row after which an endpoint counts as failing. */
const failuresMax = 5
const pauseMaxMs = 5 * 60_000

/** Wait of a failing endpoint before one message tries it again, ms; 0 while it is not failing. */
function pauseMs(failures: number, random: number): number {
  if (failures < failuresMax) return 0
  return Math.min(pauseMaxMs, delayMs(failures - failuresMax + 1, random))
}

import type { Subscriptions, WebhookLedger } from '../../db/WebhookLedger'
import type { NetworkConfig, Webhook } from '../config/Config'
import type { Log } from '../log'
import type { Meter } from '../settlement/state/metrics'
import { createMetrics } from './metrics'
import { createWatch, type Watched } from './network-watch'
import { createPost, type PostOptions } from './post'
import { createSender } from './sender'

/** Time between two looks for messages whose time has come or that an operator sends again, ms. */
const pollMs = 1_000
/** Time from a start without endpoints to the look for messages of an earlier process, ms. */
const recoverAfterMs = 500

export type WebhooksOptions = {
  ledger: WebhookLedger
  endpoints: readonly Webhook[]
  networks: readonly NetworkConfig[]
  meter: Meter
  log: Log
  /** Unix ms. */
  now: () => number
  /** How names are resolved, certificates are trusted and time is limited. */
  posting?: Omit<PostOptions, 'now'> | undefined
}

export type Webhooks = {
  /** Sends to these endpoints from now on. */
  apply(endpoints: readonly Webhook[]): void
  /** Reports what fails and recovers. Call it when each network was checked once. */
  watch(watched: Watched): void
  /** Begins nothing new; resolves when nothing is in progress. */
  stop(limitMs: number): Promise<void>
}

/**
 * Subscribes to events, and sends their messages in the background. Without endpoints it does
 * nothing.
 */
export function startWebhooks(options: WebhooksOptions): Webhooks {
  const { ledger, meter, now, log } = options
  let current = options.endpoints
  const sender = createSender({
    ledger,
    post: createPost({ ...options.posting, now }),
    now,
    random: Math.random,
    metrics: createMetrics(meter, async () => {
      const counts = await ledger.countWaiting()
      return new Map([...current.map(({ id }) => [id, 0] as const), ...counts])
    }),
    gasPerDay: options.networks.flatMap(gasPerDayOf),
    log,
  })
  const fault = (error: unknown) => log('webhook-fault', { error })
  let timer: ReturnType<typeof setInterval> | undefined
  let look = async () => {}
  const poll = () => {
    look().catch(fault)
    sender.poll().catch(fault)
  }
  const apply = (wanted: readonly Webhook[]) => {
    current = wanted
    sender.apply(wanted)
    clearInterval(timer)
    timer = wanted.length === 0 ? undefined : setInterval(poll, pollMs)
  }
  apply(current)
  const recover = () => {
    sender.recover().catch(fault)
  }
  // Without endpoints this only gives up messages of removed ones, so it may follow the start.
  const recovery = current.length === 0 ? setTimeout(recover, recoverAfterMs) : recover()
  return {
    apply,
    watch(watched) {
      look = createWatch({ ledger, watched, now })
    },
    async stop(limitMs) {
      clearInterval(timer)
      if (recovery !== undefined) clearTimeout(recovery)
      await sender.stop(limitMs)
    },
  }
}

/** The sponsor is missing here, because its budget is counted where grants are written. */
function gasPerDayOf({ id, gasPerDayWei }: NetworkConfig): Subscriptions['gasPerDay'] {
  const { gateway, facilitator, desk } = gasPerDayWei
  return [
    { network: id, product: 'gateway', wei: gateway },
    { network: id, product: 'facilitator', wei: facilitator },
    { network: id, product: 'desk', wei: desk },
  ]
}

import type { ChannelTotals } from '../../../db/Channel'
import type { Payment } from '../../../db/Payment'
import type { JobEnd } from '../send/Job'
import type { Outcome } from '../send/Outcome'

/** The part of a metrics registry that settlement needs. */
export type Meter = {
  counter(name: string, help: string, labels?: readonly string[]): Counter
  gauge(name: string, help: string, labels?: readonly string[]): Gauge
  histogram(
    name: string,
    help: string,
    buckets: readonly number[],
    labels?: readonly string[],
  ): { observe(value: number, labels?: Labels): void }
  /** Called before the metrics are read. */
  onRender(update: () => void): void
}

type Labels = Readonly<Record<string, string>>
type Counter = { inc(labels?: Labels, by?: number): void }
type Gauge = { set(value: number, labels?: Labels): void }

type Paid = Pick<Payment, 'transfer' | 'purpose'>

/** `failed`: by the payer's doing. `lost`: its time ended before it was settled. */
type ChargeOutcome = 'metered' | 'void' | 'failed' | 'lost'

/**
 * Values that are read when the metrics are rendered; from memory, except gas, which takes one
 * indexed read each.
 */
export type MetricSources = {
  networks(): readonly {
    network: string
    calls: ReadonlyMap<string, number>
    faults: ReadonlyMap<string, number>
    ready: boolean
    /** Ms by which blocks prove our clock ahead; negative: behind. */
    clockSkewMs: number
    newHeads: boolean
    relayers: readonly {
      relayer: string
      /** Why it sends nothing new. */
      reason: string | undefined
      inFlight: number
      balanceWei: bigint | undefined
    }[]
    gas: readonly { product: string; spentWei: bigint; budgetWei: bigint }[]
  }[]
  /** What each merchant may lose by `upto`, and has lost within a day, atomic. */
  risks(): ReadonlyMap<string, bigint>
  /** Payments of each network whose transaction is not confirmed. */
  pending(): Promise<ReadonlyMap<string, number>>
  /** Totals of the open payment channels, by network. */
  channels(): Promise<readonly ChannelTotals[]>
}

const secondsBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
const sizeBuckets = [1, 2, 4, 8, 16, 32, 64, 128]

/** Events that settlement reports while it runs. */
export type Metrics = ReturnType<typeof createMetrics>

/** Registers all metrics once. */
export function createMetrics(meter: Meter, sources: MetricSources) {
  const counter = (name: string, help: string, ...labels: string[]) =>
    meter.counter(name, help, labels)
  const asked = 'Settlements asked for, by how they ended.'
  const payments = counter('payments_total', asked, 'network', 'protocol', 'outcome')
  const waited = 'Time from a request with a credential to its confirmation.'
  const seconds = meter.histogram('settle_seconds', waited, secondsBuckets, ['network'])
  const size = 'Payments per settling transaction.'
  const sizes = meter.histogram('batch_size', size, sizeBuckets, ['network'])
  const usd =
    'USD of confirmed payments, as if 1 stablecoin were 1 USD. The merchant stock includes what is swapped for shares.'
  const paid = counter('paid_usd_total', usd, 'network', 'merchant')
  const again = 'Transactions sent again with higher fees.'
  const replaced = counter('replaced_transactions_total', again, 'network')
  const removed = 'Confirmed payments whose transaction a reorganisation removed.'
  const reorged = counter('reorged_payments_total', removed, 'network')
  const unpaid = 'Payments with a proven signature that cost gas and did not pay.'
  const failed = counter('failed_payments_total', unpaid, 'network')
  const byUse = 'Charges by use (x402 upto), by their outcome.'
  const charges = counter('charges_total', byUse, 'network', 'outcome')
  const sent = 'Transactions of payment channels, by kind and end.'
  const channelJobs = counter('channel_transactions_total', sent, 'network', 'kind', 'outcome')
  meter.onRender(observer(meter, sources))
  return {
    /** A caller got its outcome. `duration`: seconds since the request arrived. */
    settled(
      { transfer: { network }, purpose: { protocol } }: Paid,
      outcome: Outcome,
      duration: number,
    ): void {
      payments.inc({ network, protocol, outcome: outcome.kind })
      if (outcome.kind === 'confirmed') seconds.observe(Math.max(0, duration), { network })
    },
    /** A transaction with this many payments is sent for the first time. */
    batched: (network: string, size: number) => sizes.observe(size, { network }),
    /** The money of a payment has arrived. Settlements for other servers are not counted. */
    paid({ transfer: { network, amountAtomic }, purpose: { product, merchant } }: Paid): void {
      if (product === 'facilitator') return
      paid.inc(
        { network, merchant: product === 'desk' ? 'stock' : merchant },
        Number(amountAtomic) / 1e6,
      )
    },
    replaced: (network: string) => replaced.inc({ network }),
    reorged: (network: string, count: number) => reorged.inc({ network }, count),
    failed: (network: string) => failed.inc({ network }),
    /** A charge by use was written, or was given up. */
    charged: (network: string, outcome: ChargeOutcome) => charges.inc({ network, outcome }),
    /** A transaction of payment channels ended, or is not decided in time. */
    channelJob: (network: string, kind: ChannelJob, outcome: JobEnd['kind']) =>
      channelJobs.inc({ network, kind, outcome }),
  }
}

type ChannelJob = 'deposit' | 'claim' | 'sweep' | 'refund'

/** Reads totals that other modules keep. */
function observer(meter: Meter, sources: MetricSources): () => void {
  const gauge = (name: string, help: string, ...labels: string[]) => meter.gauge(name, help, labels)
  const method = ['network', 'method']
  const calls = totals(meter.counter('rpc_calls_total', 'JSON-RPC calls.', method))
  const unusable = 'JSON-RPC calls without a usable answer.'
  const faults = totals(meter.counter('rpc_faults_total', unusable, method))
  const ready = gauge('network_ready', 'Whether a network can settle.', 'network')
  const heads = gauge('new_heads_live', 'Whether new blocks are announced.', 'network')
  const ahead = 'Seconds by which blocks prove the clock of this machine ahead; below 0: behind.'
  const skew = gauge('clock_skew_seconds', ahead, 'network')
  const why = 'Relayers that send nothing new, with the reason.'
  const paused = states(gauge('relayer_paused', why, 'network', 'relayer', 'reason'))
  const open = 'Transactions under way.'
  const inFlight = gauge('relayer_transactions', open, 'network', 'relayer')
  const balanceOf = 'Balance of a relayer for gas.'
  const balance = gauge('relayer_balance_wei', balanceOf, 'network', 'relayer')
  const spent = gauge('gas_spent_today_wei', 'Gas spent this UTC day.', 'network', 'product')
  const budget = gauge('gas_budget_wei', 'Gas that a UTC day may cost.', 'network', 'product')
  const unconfirmed = 'Payments sent and not confirmed.'
  const pending = states(gauge('pending_payments', unconfirmed, 'network'))
  const lost =
    'Answers by upto beyond what their payers have paid: open ones, and those lost within a day.'
  const risk = gauge('merchant_losses_usd', lost, 'merchant')
  const channelsOf =
    'Open payment channels, those with a withdrawal, and those of them with unclaimed money.'
  const channels = states(gauge('channels', channelsOf, 'network', 'state'))
  const charged = 'USD of vouchers that are not claimed.'
  const unclaimed = states(gauge('channels_unclaimed_usd', charged, 'network'))
  return async () => {
    for (const each of await sources.channels()) {
      const { network } = each
      channels.put(each.channels, { network, state: 'open' })
      channels.put(each.withdrawals, { network, state: 'withdrawal' })
      channels.put(each.unsafeWithdrawals, { network, state: 'withdrawal_unclaimed' })
      unclaimed.put(Number(each.unclaimedAtomic) / 1e6, { network })
    }
    channels.finish()
    unclaimed.finish()
    for (const [merchant, atomic] of sources.risks()) risk.set(Number(atomic) / 1e6, { merchant })
    const underWay = await sources.pending()
    for (const each of sources.networks()) {
      const { network } = each
      for (const [method, count] of each.calls) calls({ network, method }, count)
      for (const [method, count] of each.faults) faults({ network, method }, count)
      ready.set(each.ready ? 1 : 0, { network })
      skew.set(each.clockSkewMs / 1000, { network })
      heads.set(each.newHeads ? 1 : 0, { network })
      for (const { relayer, balanceWei, reason, ...state } of each.relayers) {
        inFlight.set(state.inFlight, { network, relayer })
        if (balanceWei !== undefined) balance.set(Number(balanceWei), { network, relayer })
        if (reason !== undefined) paused.put(1, { network, relayer, reason: kindOf(reason) })
      }
      for (const { product, spentWei, budgetWei } of each.gas) {
        spent.set(Number(spentWei), { network, product })
        budget.set(Number(budgetWei), { network, product })
      }
    }
    for (const [network, count] of underWay) pending.put(count, { network })
    paused.finish()
    pending.finish()
  }
}

/** A reason without its figures, because each figure would create a series. */
function kindOf(reason: string): string {
  return reason.replace(/\b(0x[0-9a-f]+|\d+)\b/gi, 'N')
}

/** A counter whose total another module keeps. */
function totals(counter: Counter): (labels: Labels, total: number) => void {
  const seen = new Map<string, number>()
  return (labels, total) => {
    const key = Object.values(labels).join('\0')
    const more = total - (seen.get(key) ?? 0)
    seen.set(key, total)
    if (more > 0) counter.inc(labels, more)
  }
}

/** Sets the gauge to 0 for labels that are no longer present. */
function states(gauge: Gauge) {
  let before = new Map<string, Labels>()
  let current = new Map<string, Labels>()
  return {
    put(value: number, labels: Labels): void {
      const key = Object.values(labels).join('\0')
      before.delete(key)
      current.set(key, labels)
      gauge.set(value, labels)
    },
    finish(): void {
      for (const labels of before.values()) gauge.set(0, labels)
      before = current
      current = new Map()
    },
  }
}

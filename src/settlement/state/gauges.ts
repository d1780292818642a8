import { skewOf } from '../../chain/clock'
import { isReady, pausedBy } from '../send/relayer'
import { gasOf } from './availability'
import type { Counter, Gauge, Labels, Meter } from './metrics'
import type { Context } from './state'

/**
 * Registers what is read when the metrics are rendered. All is in memory, except the totals of the ledger, and
 * gas, which takes one indexed read for each product.
 */
export function registerGauges(meter: Meter, context: Context): void {
  const { ledger, chains, credit } = context
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
  meter.onRender(async () => {
    for (const each of await ledger.channels.totals()) {
      const { network } = each
      channels.put(each.channels, { network, state: 'open' })
      channels.put(each.withdrawals, { network, state: 'withdrawal' })
      channels.put(each.unsafeWithdrawals, { network, state: 'withdrawal_unclaimed' })
      unclaimed.put(Number(each.unclaimedAtomic) / 1e6, { network })
    }
    channels.finish()
    unclaimed.finish()
    for (const [merchant, atomic] of credit.risks()) risk.set(Number(atomic) / 1e6, { merchant })
    const underWay = await ledger.payments.countBroadcast()
    for (const [network, chain] of chains) {
      for (const [method, count] of chain.client.counts()) calls({ network, method }, count)
      for (const [method, count] of chain.client.faults()) faults({ network, method }, count)
      ready.set(ledger.fault() === undefined && isReady(chain) ? 1 : 0, { network })
      skew.set(skewOf(context, chain) / 1000, { network })
      heads.set(chain.heads.isLive() ? 1 : 0, { network })
      for (const each of chain.relayers) {
        const { address: relayer, balanceWei } = each
        inFlight.set(each.open, { network, relayer })
        if (balanceWei !== undefined) balance.set(Number(balanceWei), { network, relayer })
        const reason = pausedBy(each)
        if (reason !== undefined) paused.put(1, { network, relayer, reason: kindOf(reason) })
      }
      for (const { product, spentWei, budgetWei } of gasOf(context, chain.network)) {
        spent.set(Number(spentWei), { network, product })
        budget.set(Number(budgetWei), { network, product })
      }
      pending.put(underWay.get(network) ?? 0, { network })
    }
    paused.finish()
    pending.finish()
  })
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

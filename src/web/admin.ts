import type { Config } from '../config/Config'
import { scrub } from '../log'
import * as Amount from '../protocol/Amount'
import { type Html, html } from './html'
import { badge } from './parts'

/** A network with its relayers, as the settlement reports it. */
export type NetworkState = {
  network: string
  ready: boolean
  reason?: string | undefined
  relayers: readonly {
    relayer: string
    ready: boolean
    reason?: string | undefined
    balanceWei?: bigint | undefined
    inFlight: number
  }[]
}

export type PendingPayment = {
  id: string
  network: string
  merchant: string
  route: string
  amountAtomic: bigint
  state: string
  transaction: string
  /** Unix ms. */
  createdAt: number
}

export type HeldOrder = {
  id: string
  symbol: string
  status: string
  reason: string
  updatedAt: number
}

/** What the page for operators shows. It has no secrets, but it is not public. */
export type AdminState = {
  networks: readonly NetworkState[]
  /** The oldest pending payments, and the number of all. */
  pending: { count: number; oldest: readonly PendingPayment[] }
  openCircuits: readonly string[]
  outOfService: readonly { merchant: string; reason: string }[]
  /** Undefined where there is no stock desk. */
  heldOrders: readonly HeldOrder[] | undefined
}

/** The form for the token. The token is not stored: every request needs it again. */
export function adminForm(fault?: string): Html {
  return html`<h1>Operation</h1>
<p>This page needs the <code>ADMIN_TOKEN</code>. The token is used for this one request and is not stored.</p>
${fault !== undefined && html`<p class="fault" role="alert">${fault}</p>`}
<form class="token" method="post" action="/admin">
<label for="token">Token</label>
<div><input type="password" id="token" name="token" autocomplete="off" required><button>Show</button></div>
</form>`
}

export function adminPage({ networks: configured }: Config, state: AdminState, now: number): Html {
  const symbols = new Map(configured.map(({ id, asset }) => [String(id), asset]))
  const amount = ({ network, amountAtomic }: PendingPayment) => {
    const asset = symbols.get(network)
    if (asset === undefined) return String(amountAtomic)
    return `${Amount.toDecimal(amountAtomic, asset.decimals)} ${asset.symbol}`
  }
  const { networks, pending, openCircuits, outOfService, heldOrders } = state
  return html`<h1>Operation</h1>
<p class="quiet">At ${time(now)}.</p>
<h2>Networks and relayers</h2>
${table(
  'Networks and relayers',
  ['Network', 'Relayer', 'State', 'Balance', 'In progress'],
  networks.flatMap((network) =>
    network.relayers.map((relayer) => [
      network.network,
      html`<code>${relayer.relayer}</code>`,
      stateOf(relayer, commonReason(network)),
      relayer.balanceWei === undefined ? 'unknown' : Amount.toDecimal(relayer.balanceWei, 18),
      relayer.inFlight,
    ]),
  ),
)}
<h2>Pending payments</h2>
<p>${pending.count === 0 ? 'None.' : `${pending.count} in all; the oldest:`}</p>
${
  pending.count > 0 &&
  table(
    'Pending payments',
    ['Payment', 'For', 'Amount', 'State', 'Age', 'Transaction'],
    pending.oldest.map((payment) => [
      html`<code>${payment.id}</code>`,
      `${payment.merchant}${payment.route}`,
      amount(payment),
      payment.state,
      `${Math.max(0, Math.round((now - payment.createdAt) / 1000))} s`,
      html`<code>${payment.transaction}</code> ${payment.network}`,
    ]),
  )
}
<h2>Open circuits</h2>
${list(openCircuits)}
<h2>Merchants out of service</h2>
${list(outOfService.map(({ merchant, reason }) => `${merchant}: ${reason}`))}
${
  heldOrders !== undefined &&
  html`<h2>Held orders</h2>
${
  heldOrders.length === 0
    ? list([])
    : table(
        'Held orders',
        ['Order', 'Token', 'State', 'Reason', 'Since'],
        heldOrders.map(({ id, symbol, status, reason, updatedAt }) => [
          html`<code>${id}</code>`,
          symbol,
          status,
          scrub(reason),
          time(updatedAt),
        ]),
      )
}`
}`
}

/**
 * The reason why all relayers of a network are paused, unless a relayer has a reason of its own.
 */
function commonReason({ ready, reason, relayers }: NetworkState): string | undefined {
  if (ready || relayers.some((relayer) => relayer.reason === reason)) return undefined
  return reason ?? 'unknown'
}

function stateOf(relayer: NetworkState['relayers'][number], common: string | undefined): Html {
  if (relayer.ready && common === undefined) return badge('good', 'ready')
  const reasons = [common, relayer.reason].filter((reason) => reason !== undefined)
  return html`${badge('bad', 'paused')} ${scrub(reasons.join('; ') || 'unknown')}`
}

function list(lines: readonly string[]): Html {
  if (lines.length === 0) return html`<p>None.</p>`
  return html`<ul>${lines.map((line) => html`<li>${scrub(line)}</li>`)}</ul>`
}

function table(
  name: string,
  columns: readonly string[],
  rows: readonly (readonly (Html | string | number)[])[],
): Html {
  return html`<div class="scroll" role="region" aria-label="${name}" tabindex="0"><table>
<thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
<tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
</table></div>`
}

/** RFC 3339 in UTC, to the second. */
function time(at: number): string {
  return new Date(at).toISOString().replace(/\.\d+Z$/, 'Z')
}

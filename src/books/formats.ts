import type { SalesFigures } from '../../db/sales'
import * as Amount from '../protocol/Amount'
import { type Asset, type Line, type Report, sumOfUsd, usdText } from './Books'
import { type Group, nameOf } from './Group'

/** Most lines of a table; the other formats have all. */
export const shownMax = 100

/** The report for people: aligned tables, then notes about what needs attention. */
export function reportText(report: Report): string {
  const { by, from, to, lines, totals, requests } = report
  const sales = lines.filter((line) => line.class === 'sale')
  const own = lines.filter((line) => line.class === 'own')
  const settled = lines.filter((line) => line.class === 'facilitator')
  const parts = [
    [`Sales from ${minute(from)} to ${minute(to)} UTC, by ${by}`],
    sales.length === 0 ? ['No payments.'] : salesTable(by, sales, totals),
    own.length === 0 ? [] : ['Payments of own accounts, not in the sums', ...table(by, own)],
    settled.length === 0
      ? []
      : ['Settled by the facilitator for other servers, not in the sums', ...table(by, settled)],
    gasNotes(report),
    [...notes(totals), ...channelNotes(report)],
    requests.length === 0 ? [] : requestTable(by, requests),
  ]
  return `${parts
    .filter((part) => part.length > 0)
    .map((part) => part.join('\n'))
    .join('\n\n')}\n`
}

/** `2026-11-20 08:00`. */
export function minute(at: number): string {
  return new Date(at).toISOString().slice(0, 16).replace('T', ' ')
}

const head = ['payments', 'paid', 'delivered', 'undelivered', 'refunded', 'swapped']

function salesTable(by: string, sales: readonly Line[], totals: readonly Line[]): string[] {
  const [paid, revenue, gas, margin] = (['paid', 'revenue', 'gas', 'margin'] as const).map((name) =>
    usdCell(sumOfUsd(totals.map(({ usd }) => usd[name]))),
  )
  const payments = totals.reduce((total, { figures }) => total + figures.payments, 0)
  return table(by, sales, [
    ...totals.map((line) => rowOf('total', line)),
    ['total', 'all', 'USD', String(payments), paid, '', '', '', '', revenue, gas, margin],
  ])
}

function table(
  by: string,
  lines: readonly Line[],
  more: readonly (readonly (string | undefined)[])[] = [],
): string[] {
  const shown = lines.slice(0, shownMax).map((line) => rowOf(nameOf(line), line))
  const rest = lines.length - shown.length
  const label = by === 'network' ? '' : by
  const rows = align(
    [
      [label, 'network', 'asset', ...head, 'revenue USD', 'gas USD', 'margin USD'],
      ...shown,
      ...more,
    ],
    3,
  )
  return rest > 0 ? [...rows, `${rest} more lines: --csv and --json have all`] : rows
}

function rowOf(name: string, { asset, figures, usd }: Line): string[] {
  const amount = (atomic: bigint) => amountText(atomic, asset)
  return [
    name,
    asset.networkName,
    asset.symbol,
    String(figures.payments),
    amount(figures.paidAtomic),
    amount(figures.deliveredAtomic),
    amount(figures.undeliveredAtomic),
    amount(figures.refundedAtomic),
    amount(figures.swappedAtomic),
    usdCell(usd.revenue),
    usdCell(usd.gas),
    usdCell(usd.margin),
  ]
}

/** Atomic where the decimals are not known. */
function amountText(atomic: bigint, { decimals }: Asset): string {
  return decimals === undefined ? String(atomic) : Amount.toDecimal(atomic, decimals)
}

function usdCell(micro: bigint | undefined): string {
  return micro === undefined ? '?' : usdText(micro)
}

/** Columns of equal width; the first `left` of them are texts, the others numbers. */
export function align(rows: readonly (readonly (string | undefined)[])[], left: number): string[] {
  const widths = (rows[0] ?? []).map((_, index) =>
    Math.max(...rows.map((row) => (row[index] ?? '').length)),
  )
  return rows.map((row) =>
    row
      .map((value = '', index) => {
        const width = widths[index] ?? 0
        return index < left ? value.padEnd(width) : value.padStart(width)
      })
      .filter((_, index) => widths[index] !== 0)
      .join('  ')
      .trimEnd(),
  )
}

const gasKinds: Readonly<Record<string, string>> = {
  grant: 'grants',
  approve: 'approves',
  cancel: 'cancelled account nonces',
  refund: 'refunds of payments',
  channel: 'deposits, claims and refunds of channels',
}

function ether(wei: bigint): string {
  return `${Amount.toDecimal(wei, 18).replace(/\.?0+$/, '')} ETH`
}

function gasNotes({ totals, otherGas, unknownGas }: Report): string[] {
  const prices = new Map(
    [...totals, ...otherGas].map(({ asset }) => [asset.networkName, asset.coinUsd]),
  )
  const priced = [...prices].map(([name, usd]) => `${usd ?? '?'} USD an ETH on ${name}`)
  return [
    'USD: 1 stablecoin is 1 USD. revenue: delivered, without what was swapped for stock. margin: revenue, less gas.',
    ...(priced.length > 0
      ? [`Gas at the eth_price_usd of the configuration: ${priced.join(', ')}.`]
      : []),
    ...totals.map(
      ({ asset, figures }) => `Gas of sales on ${asset.networkName}: ${ether(figures.gasWei)}.`,
    ),
    ...otherGas.map(({ asset, kind, gasWei, usd }) => {
      const what = gasKinds[kind] ?? kind
      return `Not in the sums: ${what} on ${asset.networkName}, ${ether(gasWei)}, ${usdCell(usd)} USD.`
    }),
    ...(unknownGas > 0
      ? [`The gas of ${count(unknownGas, 'transaction')} of an earlier version is not known.`]
      : []),
  ]
}

/** What is not delivered or not settled. */
function notes(totals: readonly Line[]): string[] {
  return totals.flatMap(({ asset, figures }) => {
    const { undelivered, redeemable, openOrders, refunds, pending, lost } = figures
    const money = (atomic: bigint) =>
      `${amountText(atomic, asset)} ${asset.symbol} on ${asset.networkName}`
    return [
      ...(undelivered > 0
        ? [
            `${count(undelivered, 'payment')} of ${money(figures.undeliveredAtomic)} not delivered: ` +
              `${redeemable} of ${money(figures.redeemableAtomic)} can still be fetched by the buyer.`,
          ]
        : []),
      ...(refunds > 0
        ? [`${count(refunds, 'payment')} on ${asset.networkName} refunded, whole or in part.`]
        : []),
      ...(openOrders > 0
        ? [`${count(openOrders, 'stock order')} not ended: turnpike orders list shows them.`]
        : []),
      ...(pending > 0
        ? [
            `${count(pending, 'payment')} of ${money(figures.pendingAtomic)} not settled yet, not in the sums.`,
          ]
        : []),
      ...(lost > 0
        ? [
            `${count(lost, 'charge')} of ${money(figures.lostAtomic)} could not be settled (log charge-lost).`,
          ]
        : []),
    ]
  })
}

function channelNotes({ channels }: Report): string[] {
  return channels.map(({ asset, channels: open, unclaimedAtomic, withdrawals }) => {
    const sold = `${amountText(unclaimedAtomic, asset)} ${asset.symbol} on ${asset.networkName}`
    const ending = withdrawals > 0 ? `, ${count(withdrawals, 'withdrawal')}` : ''
    return `Sold by channels and not on chain yet: ${sold} (${count(open, 'open channel')}${ending}).`
  })
}

function count(times: number, what: string): string {
  return `${times} ${what}${times === 1 ? '' : 's'}`
}

function requestTable(by: string, requests: Report['requests']): string[] {
  const isGrouped = by === 'merchant' || by === 'route' || by === 'day'
  // Most services give no answers without a payment.
  const given = kinds.filter((kind) => requests.some(({ free }) => free[kind] !== undefined))
  const rows = requests
    .slice(0, shownMax)
    .map(({ asked, paid, failed, free, ...group }) => [
      nameOf(group),
      ...[asked, paid, failed].map(String),
      asked === 0 ? '' : `${((paid / asked) * 100).toFixed(1)} %`,
      ...given.map((kind) => String(free[kind] ?? 0)),
    ])
  return [
    `Requests${isGrouped ? ` by ${by}` : ''}, in whole UTC days`,
    ...align([[isGrouped ? by : '', '402', 'paid', 'failed', 'paid of 402', ...given], ...rows], 1),
    ...(given.length > 0 ? [`${given.join(', ')}: answers without a further payment.`] : []),
  ]
}

const kinds = ['trial', 'pass', 'again'] as const

/** The report as JSON: counts are numbers, amounts are strings. */
export function reportJson({ by, from, to, ...report }: Report): string {
  const ofClass = (name: Line['class']) =>
    report.lines.filter((line) => line.class === name).map(lineJson)
  const networks = new Map(
    [...report.lines, ...report.otherGas].map(({ asset: { network, networkName, coinUsd } }) => [
      network,
      { id: network, name: networkName, coinUsd },
    ]),
  )
  const json = {
    since: new Date(from).toISOString(),
    until: new Date(to).toISOString(),
    by,
    networks: [...networks.values()],
    sales: ofClass('sale'),
    totals: report.totals.map(lineJson),
    ownPayments: ofClass('own'),
    facilitator: ofClass('facilitator'),
    otherGas: report.otherGas.map(({ asset, kind, gasWei, usd }) => ({
      network: asset.network,
      kind,
      gasWei: String(gasWei),
      gasUsd: usd === undefined ? undefined : usdText(usd),
    })),
    channels: report.channels.map(({ asset, usd, unclaimedAtomic, ...line }) => ({
      ...assetJson(asset),
      ...line,
      unclaimedAtomic: String(unclaimedAtomic),
      unclaimedUsd: usd === undefined ? undefined : usdText(usd),
    })),
    unknownGas: report.unknownGas,
    requests: report.requests,
  }
  return `${JSON.stringify(json, null, 2)}\n`
}

function lineJson({ class: _, asset, figures, usd, ...group }: Line) {
  return {
    ...group,
    ...assetJson(asset),
    ...figuresJson(figures),
    revenueUsd: usd.revenue === undefined ? undefined : usdText(usd.revenue),
    swappedUsd: usd.swapped === undefined ? undefined : usdText(usd.swapped),
    gasUsd: usd.gas === undefined ? undefined : usdText(usd.gas),
    marginUsd: usd.margin === undefined ? undefined : usdText(usd.margin),
  }
}

function assetJson({ network, address: asset, symbol, decimals }: Asset) {
  return { network, asset, symbol, decimals }
}

function figuresJson(figures: SalesFigures) {
  return Object.fromEntries(
    Object.entries(figures).map(([name, value]) => {
      return [name, typeof value === 'bigint' ? String(value) : value]
    }),
  )
}

/** The columns in their order. Add new ones at the end, because scripts read them by place. */
const columns = [
  'class',
  'day',
  'merchant',
  'route',
  'payer',
  'network',
  'network_name',
  'asset',
  'symbol',
  'decimals',
  'payments',
  'paid_atomic',
  'delivered_atomic',
  'undelivered_payments',
  'undelivered_atomic',
  'redeemable_payments',
  'redeemable_atomic',
  'refunded_atomic',
  'swapped_atomic',
  'pending_payments',
  'pending_atomic',
  'lost_payments',
  'lost_atomic',
  'gas_wei',
  'gas_usd',
  'profit_usd',
  'loss_usd',
  'requests_402',
  'requests_paid',
  'requests_failed',
  'revenue_usd',
  'swapped_usd',
  'refunded_payments',
  'requests_again',
  'requests_pass',
  'requests_trial',
  'open_channels',
  'unclaimed_atomic',
  'unclaimed_usd',
] as const

type Row = Partial<Record<(typeof columns)[number], string | number | bigint | undefined>>

/**
 * The report as CSV (RFC 4180) with one header. A line is of the class `sale`, `own`,
 * `facilitator`, `gas` (grants and other transactions without a payment), `channels` or `requests`.
 */
export function reportCsv({ lines, otherGas, channels, requests }: Report): string {
  const rows: Row[] = [
    ...lines.map(({ class: of, asset, figures, usd, ...group }) => ({
      class: of,
      ...ofGroup(group),
      ...ofAsset(asset),
      ...ofFigures(figures),
      gas_usd: usd.gas === undefined ? undefined : usdText(usd.gas),
      revenue_usd: usd.revenue === undefined ? undefined : usdText(usd.revenue),
      swapped_usd: usd.swapped === undefined ? undefined : usdText(usd.swapped),
      // A cell must not begin with a minus, so that a margin has two columns.
      ...(usd.margin === undefined
        ? {}
        : {
            profit_usd: usdText(usd.margin > 0n ? usd.margin : 0n),
            loss_usd: usdText(usd.margin < 0n ? -usd.margin : 0n),
          }),
    })),
    ...otherGas.map(({ asset: { network, networkName }, gasWei, usd }) => ({
      class: 'gas',
      network,
      network_name: networkName,
      gas_wei: gasWei,
      gas_usd: usd === undefined ? undefined : usdText(usd),
    })),
    ...channels.map(({ asset, channels: open, unclaimedAtomic, usd }) => ({
      class: 'channels',
      ...ofAsset(asset),
      open_channels: open,
      unclaimed_atomic: unclaimedAtomic,
      unclaimed_usd: usd === undefined ? undefined : usdText(usd),
    })),
    ...requests.map(({ asked, paid, failed, free, ...group }) => ({
      class: 'requests',
      ...ofGroup(group),
      requests_402: asked,
      requests_paid: paid,
      requests_failed: failed,
      requests_again: free.again,
      requests_pass: free.pass,
      requests_trial: free.trial,
    })),
  ]
  const texts = rows.map((row) => columns.map((column) => cell(row[column])).join(','))
  return `${[columns.join(','), ...texts].join('\r\n')}\r\n`
}

function ofGroup({ day, merchant, route, payer }: Group): Row {
  return { day, merchant, route, payer }
}

function ofAsset({ network, networkName, address, symbol, decimals }: Asset): Row {
  return { network, network_name: networkName, asset: address, symbol, decimals }
}

function ofFigures(figures: SalesFigures): Row {
  return {
    payments: figures.payments,
    paid_atomic: figures.paidAtomic,
    delivered_atomic: figures.deliveredAtomic,
    undelivered_payments: figures.undelivered,
    undelivered_atomic: figures.undeliveredAtomic,
    redeemable_payments: figures.redeemable,
    redeemable_atomic: figures.redeemableAtomic,
    refunded_payments: figures.refunds,
    refunded_atomic: figures.refundedAtomic,
    swapped_atomic: figures.swappedAtomic,
    pending_payments: figures.pending,
    pending_atomic: figures.pendingAtomic,
    lost_payments: figures.lost,
    lost_atomic: figures.lostAtomic,
    gas_wei: figures.gasWei,
  }
}

/**
 * One cell. Spreadsheets run a text that begins with one of `= + - @` as a formula, also after
 * white space, so that gets an apostrophe in front: https://owasp.org/www-community/attacks/CSV_Injection
 */
export function cell(value: Row[keyof Row]): string {
  const text = String(value ?? '')
  const safe = /^\s*[=+\-@]/.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

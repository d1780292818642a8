import type { SalesFigures } from '../../db/SalesLedger'
import type { Asset, Group, Report } from './Books'
import { usdText } from './usd'

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
] as const

type Row = Partial<Record<(typeof columns)[number], string | number | bigint | undefined>>

/**
 * The report as CSV (RFC 4180) with one header. A line is of the class `sale`, `own`,
 * `facilitator`, `gas` (grants and other transactions without a payment) or `requests`.
 */
export function toCsv({ lines, otherGas, requests }: Report): string {
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
    ...requests.map(({ asked, paid, failed, ...group }) => ({
      class: 'requests',
      ...ofGroup(group),
      requests_402: asked,
      requests_paid: paid,
      requests_failed: failed,
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

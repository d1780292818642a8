import type { SalesFigures } from '../../db/SalesLedger'
import type { Line, Report } from './Books'
import { usdText } from './usd'

/** The report as JSON: counts are numbers, amounts are strings. */
export function toJson({ by, from, to, ...report }: Report): string {
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
    unknownGas: report.unknownGas,
    requests: report.requests,
  }
  return `${JSON.stringify(json, null, 2)}\n`
}

function lineJson({ class: _, asset, figures, usd, ...group }: Line) {
  const { network, address, symbol, decimals } = asset
  return {
    ...group,
    network,
    asset: address,
    symbol,
    decimals,
    ...figuresJson(figures),
    revenueUsd: usd.revenue === undefined ? undefined : usdText(usd.revenue),
    swappedUsd: usd.swapped === undefined ? undefined : usdText(usd.swapped),
    gasUsd: usd.gas === undefined ? undefined : usdText(usd.gas),
    marginUsd: usd.margin === undefined ? undefined : usdText(usd.margin),
  }
}

function figuresJson(figures: SalesFigures) {
  return Object.fromEntries(
    Object.entries(figures).map(([name, value]) => {
      return [name, typeof value === 'bigint' ? String(value) : value]
    }),
  )
}

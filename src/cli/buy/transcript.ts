import type { Address } from 'viem'
import type { Exchange, Purchase } from '../../demo/buyers'
import * as AddressText from '../../protocol/Address'
import * as Amount from '../../protocol/Amount'
import * as Json from '../../protocol/Json'
import { isFault } from '../../protocol/Problem'
import * as Receipt from '../../protocol/Receipt'
import * as Charge from './Charge'
import { settlementOf } from './outcome'
import * as Terms from './Terms'

/** Describes a purchase, and checks whether the money moved as it should. */

/** Token balances, atomic. */
export type Balances = { payer: bigint; payee: bigint; relayer: bigint }

export type Bought = {
  title: string
  purchase: Purchase
  symbol: string
  decimals: number
  /** The amount that moves: the price, or the charge. */
  priceAtomic: bigint
  /** For a purchase by the scheme `upto`: the signed ceiling, and the counted units. */
  use?: { ceilingAtomic: bigint; units: Readonly<Record<string, number>> } | undefined
  before: Balances
  after: Balances
  /** Published signer of receipts. */
  receiptSigner: Address
  /** Whether the transaction of the receipt succeeded on chain. */
  mined: (transaction: string) => Promise<boolean>
}

/** Lines about a purchase, and its faults. */
export type Transcript = { lines: string[]; faults: string[] }

const widest = 160

/** Describes a purchase: request, 402, paid request, answer, receipt, balances. */
export async function transcribe(bought: Bought): Promise<Transcript> {
  const { title, purchase } = bought
  const [asked, ...paid] = purchase.requests
  const faults: string[] = []
  const lines = [title]
  if (asked === undefined) return { lines, faults: ['no request was made'] }
  lines.push('', `  ${asked.method} ${asked.url}`, `  ${status(asked.status)}`)
  if (asked.status !== 402) faults.push(`the first answer was ${asked.status}, not 402`)
  for (const terms of Terms.decode(asked.responseHeaders))
    lines.push(`      ${Terms.describe(terms)}`)
  for (const exchange of paid) {
    lines.push('', `  ${exchange.method} ${exchange.url}`, `      ${credential(exchange)}`)
    lines.push(`  ${status(exchange.status)}`, `      ${shorten(purchase.body)}`)
  }
  if (paid.length !== 1) faults.push(`${paid.length} paid requests were made, not one`)
  if (purchase.response.status !== 200) faults.push(`the answer was ${purchase.response.status}`)
  const use = transcribeUse(bought)
  const receipt = await transcribeReceipt(bought)
  const balances = transcribeBalances(bought)
  return {
    lines: [...lines, '', ...use.lines, ...receipt.lines, '', ...balances.lines],
    faults: [...faults, ...use.faults, ...receipt.faults, ...balances.faults],
  }
}

/** Describes the use of an answer, and compares it with `PAYMENT-RESPONSE`. */
function transcribeUse({ use, priceAtomic, purchase, symbol, decimals }: Bought): Transcript {
  if (use === undefined) return { lines: [], faults: [] }
  const charge = Charge.ofResponse(purchase.response.headers.get('payment-response') ?? '')
  const units = Object.entries(use.units)
  const isRight =
    charge?.amountAtomic === priceAtomic &&
    units.every(([name, count]) => charge.units[name] === count) &&
    priceAtomic > 0n &&
    priceAtomic < use.ceilingAtomic
  const shown = (atomic: bigint) => `${Amount.toDecimal(atomic, decimals)} ${symbol}`
  return {
    lines: [
      `  ceiling     ${shown(use.ceilingAtomic)}`,
      `  units       ${units.map(([name, count]) => `${count} ${name}`).join(', ')}`,
      `  charge      ${shown(charge?.amountAtomic ?? 0n)}`,
    ],
    faults: isRight ? [] : [`the charge is not ${priceAtomic} of at most ${use.ceilingAtomic}`],
  }
}

function credential(exchange: Exchange): string {
  const { headers } = exchange
  const [name, value] = headers.has('payment-signature')
    ? ['PAYMENT-SIGNATURE', headers.get('payment-signature')]
    : ['Authorization', headers.get('authorization')]
  return `${name}: ${value?.slice(0, 40)}... (${value?.length} characters)`
}

async function transcribeReceipt(bought: Bought): Promise<Transcript> {
  const { headers } = bought.purchase.response
  const encoded = headers.get('payment-receipt') ?? headers.get('payment-response')
  if (encoded === null) return { lines: [], faults: ['there is no receipt'] }
  const receipt = Receipt.parse(encoded)
  if (isFault(receipt)) return { lines: [], faults: [receipt.detail] }
  const { transaction, payer, network, issuedAt } = receipt.payload
  const signer = Receipt.verify(receipt)
  const faults: string[] = []
  if (signer === undefined || !AddressText.equal(signer, bought.receiptSigner))
    faults.push('the receipt is not signed by the published key')
  if (!(await bought.mined(transaction))) faults.push(`transaction ${transaction} did not succeed`)
  const settled = settlementOf(encoded)
  if (settled !== transaction) faults.push('the receipt names another transaction than it signs')
  const issued = new Date(issuedAt * 1000).toISOString()
  return {
    lines: [
      `  settled by  ${transaction}`,
      `  receipt     ${network}, paid by ${payer}, ${issued}`,
      `              signed by ${signer}`,
    ],
    faults,
  }
}

function transcribeBalances(bought: Bought): Transcript {
  const { priceAtomic, before, after, symbol, decimals } = bought
  const expected = { payer: -priceAtomic, payee: priceAtomic, relayer: 0n }
  const faults: string[] = []
  const lines = (['payer', 'payee', 'relayer'] as const).map((role) => {
    const moved = after[role] - before[role]
    if (moved !== expected[role])
      faults.push(`the ${role}'s balance moved by ${moved}, not by ${expected[role]}`)
    const from = Amount.toDecimal(before[role], decimals).padStart(12)
    const to = Amount.toDecimal(after[role], decimals).padStart(12)
    return `  ${role.padEnd(8)}${from} -> ${to} ${symbol}`
  })
  return { lines, faults }
}

/** Describes the shares of a stock order. The order's shares must equal the received shares. */
export function transcribeDelivery(
  purchase: Purchase,
  symbol: string,
  arrivedAtomic: bigint,
): Transcript {
  let order: Json.JsonObject
  try {
    order = Json.parse(purchase.body)
  } catch {
    return { lines: [], faults: ['the answer is no order'] }
  }
  const text = (name: string) => String(Json.member(order, name) ?? '')
  const isRight = arrivedAtomic > 0n && text('deliveredSharesAtomic') === String(arrivedAtomic)
  return {
    lines: [
      `  swapped by  ${text('swapTx')}`,
      `  delivered   ${text('deliveredShares')} ${symbol} to ${text('recipient')}`,
    ],
    faults: isRight ? [] : [`${arrivedAtomic} atomic shares arrived`],
  }
}

function status(code: number): string {
  const names: Readonly<Record<number, string>> = { 200: 'OK', 402: 'Payment Required' }
  return `${code} ${names[code] ?? ''}`.trimEnd()
}

function shorten(body: string): string {
  const line = body.replaceAll(/\s+/g, ' ')
  return line.length > widest ? `${line.slice(0, widest)}... (${body.length} characters)` : line
}

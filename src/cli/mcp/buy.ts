import * as Json from '../../protocol/Json'
import * as Credential from '../buy/Credential'
import { chooseFunded } from '../buy/funds'
import * as Terms from '../buy/Terms'
import * as Answer from './Answer'
import type { BuyerOptions, Result, Wanted } from './context'
import { findFates } from './evidence'
import { GatewayError } from './gateway'
import { type Presented, present } from './present'
import * as Sentences from './Sentences'
import { callOf, type Payment, type Spending, SpendingError } from './spending'

type Context = BuyerOptions & { reconcile: () => Promise<void> }

export function createBuyer(options: BuyerOptions) {
  const { spending, rpc } = options
  const turns = new Map<string, Promise<unknown>>()
  let reconciling: Promise<void> | undefined
  const reconcile = () => {
    reconciling ??= lower(spending, rpc).finally(() => {
      reconciling = undefined
    })
    return reconciling
  }
  const context: Context = { ...options, reconcile }
  return {
    /** Lowers what counts today by what the chain proves. */
    reconcile,
    /** Calls a tool and pays for it within the limits. Never signs twice for an unfinished call. */
    async call(wanted: Wanted, signal: AbortSignal): Promise<Result> {
      const id = callId(context, wanted)
      try {
        return await inTurn(turns, id, () => call(context, wanted, id, signal))
      } catch (error) {
        if (error instanceof SpendingError) return refusal(Sentences.stateFails(error.message))
        throw error
      }
    },
  }
}

async function lower(spending: Spending, rpc: string | undefined): Promise<void> {
  const fates = await findFates(spending.unsettled(), rpc)
  for (const [id, fate] of fates) spending.settle(id, fate)
}

function callId({ gateway, payer }: Context, { name, args }: Wanted): string {
  return callOf({ origin: gateway.origin, payer }, name, Json.canonicalize(args))
}

/** Equal calls run one after the other: the second one must see the payment of the first. */
function inTurn<T>(
  turns: Map<string, Promise<unknown>>,
  key: string,
  run: () => Promise<T>,
): Promise<T> {
  const task = (turns.get(key) ?? Promise.resolve()).then(run, run)
  const settled = task.then(
    () => undefined,
    () => undefined,
  )
  turns.set(key, settled)
  settled.then(() => {
    if (turns.get(key) === settled) turns.delete(key)
  })
  return task
}

async function call(
  context: Context,
  wanted: Wanted,
  id: string,
  signal: AbortSignal,
): Promise<Result> {
  const { gateway, spending } = context
  const unfinished = spending.findUnfinished(id)
  if (unfinished) {
    const presented = await present(context, wanted, unfinished, signal)
    if (presented.kind !== 'expired') return resultOf(presented)
  }
  let answer: Answer.Answer
  try {
    const params = { name: wanted.name, arguments: wanted.args }
    answer = Answer.of(await gateway.request('tools/call', params, signal))
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error
    return refusal(Sentences.unreachable(error.message))
  }
  if (answer.kind === 'offers') return buy(context, wanted, { id, answer, signal })
  const { result } = answer
  const isError = Json.member(result, 'isError') === true
  const note = Answer.note('[turnpike] Nothing was paid.')
  return { content: [...Answer.contentOf(result), note], ...(isError && { isError }) }
}

type Offered = {
  id: string
  answer: Extract<Answer.Answer, { kind: 'offers' }>
  signal: AbortSignal
}

async function buy(
  context: Context,
  wanted: Wanted,
  { id, answer, signal }: Offered,
): Promise<Result> {
  const { spending, limits, now } = context
  if (answer.invalidParams !== '') return refusal(Sentences.invalidArguments(answer.invalidParams))
  const chosen = await choose(context, wanted, Terms.ofRequired(answer.required))
  if (typeof chosen === 'string') return refusal(chosen)
  const payment = sign(context, wanted, id, chosen)
  let reserved = spending.reserve(payment, limits.perDayMicros)
  if (reserved.kind === 'limit') {
    await context.reconcile()
    reserved = spending.reserve(payment, limits.perDayMicros)
  }
  if (reserved.kind === 'limit') {
    const { spentMicros } = reserved
    return refusal(Sentences.dayIsSpent(chosen, { spentMicros, limits, now: now() }))
  }
  return resultOf(await present(context, wanted, reserved.payment, signal))
}

/** The terms to pay, or why none of them is paid. */
async function choose(
  { limits, scheme, network, catalogue, payer, rpc }: Context,
  { name }: Wanted,
  offered: readonly Terms.Terms[],
): Promise<Terms.Terms | string> {
  const wanted = offered
    .filter((terms) => network === undefined || terms.network === network)
    .filter((terms) => terms.scheme === 'exact' || scheme === 'upto')
    .toSorted((a, b) => rankOf(a, scheme) - rankOf(b, scheme))
  if (wanted.length === 0) return Sentences.cannotPay(offered, network)
  const [first, ...others] = wanted.filter((each) => microsOf(each) <= limits.perCallMicros)
  if (first === undefined) return Sentences.tooDear(wanted, limits)
  const terms = await chooseFunded([first, ...others], payer, rpc)
  if (!('asset' in terms)) return Sentences.hasTooLittle(payer, terms)
  const listed = catalogue.priceOf(name)
  const micros = microsOf(terms)
  if (listed !== undefined && micros > listed) {
    catalogue.notePrice(name, micros)
    return Sentences.dearerThanListed(terms, listed)
  }
  return terms
}

/** The wanted scheme first, then what needs no approval. */
function rankOf(terms: Terms.Terms, scheme: Terms.Scheme): number {
  return (terms.scheme === scheme ? 0 : 2) + (terms.method === 'eip3009' ? 0 : 1)
}

/** The amount in millionths of a dollar, rounded up. */
function microsOf({ amountAtomic, asset: { decimals } }: Terms.Terms): bigint {
  if (decimals <= 6) return amountAtomic * 10n ** BigInt(6 - decimals)
  const unit = 10n ** BigInt(decimals - 6)
  return (amountAtomic + unit - 1n) / unit
}

function sign(
  { privateKey, now }: Context,
  { name, args }: Wanted,
  call: string,
  terms: Terms.Terms,
): Payment {
  const random = crypto.getRandomValues(new Uint8Array(32))
  const { value, transfer } = Credential.from(terms, { privateKey, now: now(), random })
  const { network, asset, method, payer, payee, nonce, validBefore } = transfer
  return {
    id: crypto.randomUUID(),
    call,
    tool: name,
    args: Json.canonicalize(args),
    network,
    asset,
    method,
    scheme: terms.scheme,
    payer,
    payee,
    nonce,
    signedMicros: microsOf(terms),
    amount: Terms.amountOf(terms),
    validBefore: Number(validBefore),
    credential: Buffer.from(value, 'base64').toString(),
  }
}

function resultOf(presented: Presented): Result {
  if (presented.kind === 'answer') return presented.result
  return refusal(presented.text)
}

export function refusal(text: string): Result {
  return { isError: true, content: [Answer.note(text)] }
}

import type { Address, Hex } from 'viem'
import * as Multicall from '../../src/chain/multicall'
import * as Receipt from '../../src/chain/receipt'
import * as Token from '../../src/chain/token'
import * as Transaction from '../../src/chain/transaction'
import { account } from '../../src/demo/accounts'
import * as Abi from '../../src/protocol/Abi'
import * as Crypto from '../../src/protocol/Crypto'
import * as Transfer from '../../src/protocol/Transfer'

type Call = { to: Address; data: Hex }
type Log = { address: Address; topics: readonly Hex[]; data: Hex }

/** A transaction that a chain got; `maxFeeWei` decides which of two at one nonce stays. */
export type Sent = Call & { hash: Hex; raw: Hex; from: Address; nonce: number; maxFeeWei: bigint }

/** A transaction in a block. `used` and `spent` are its only effects on the token. */
export type Included = Sent & {
  success: boolean
  logs: readonly Log[]
  used: readonly string[]
  spent: readonly { payer: Address; amountAtomic: bigint }[]
  gasUsed: bigint
}

export type Block = {
  number: number
  hash: Hex
  timestamp: bigint
  transactions: readonly Included[]
}

/** Unix seconds at which every scripted chain and clock starts. */
export const startSeconds = 1_800_000_000

/**
 * The model of a chain with one EIP-3009 token: blocks, account nonces, and used authorizations.
 * Nothing is executed. State is read from the blocks, so that removing blocks is a reorganisation.
 */
export type ScriptedChain = {
  blocks: Block[]
  /** Sent and not included, oldest first. */
  pool: Sent[]
  /** Unix seconds of the next block. */
  seconds: bigint
  baseFeeWei: bigint
  /** Balance of each payer at the start, atomic. */
  fundsAtomic: bigint
  /** Gas that a settling call uses. */
  gasOfCall: bigint
  /**
   * Nonces of authorizations whose next settling call fails in a block, though it passes a
   * simulation.
   */
  failing: Set<string>
  newest(): Block
  /** Adds a block with the executable transactions of the pool, or with these transactions. */
  mine(transactions?: readonly Sent[]): Block
  /** Puts bytes into a block of their own, without the pool. */
  include(raw: Hex): Block
  /** Keeps bytes for a later block, in place of others at their nonce with lower fees. */
  keep(raw: Hex): void
  /** Another account settles the transfers in one transaction. */
  settleExternally(...transfers: [Transfer.Transfer, ...Transfer.Transfer[]]): Hex
  /** Uses the nonce of an authorization without a transfer. */
  cancel(transfer: Transfer.Transfer): void
  /** Another program uses an account nonce. */
  useNonce(from: Address): void
  /** Removes the newest blocks. Their transactions are lost unless they are sent again. */
  drop(count: number): void
  count(from: Address): number
  find(hash: string): { block: Block; transaction: Included; position: number } | undefined
  /** Results of an eth_call to Multicall3, in the newest state. */
  aggregate(data: Hex): Hex
}

let serial = 0
const fresh = (): Hex => Crypto.hex(Crypto.keccak256(`scripted ${++serial}`))
const none = { used: [], spent: [], logs: [] }

export function createScriptedChain(token: Address): ScriptedChain {
  const blockAfter = (number: number, transactions: readonly Included[]): Block => ({
    number,
    hash: fresh(),
    timestamp: chain.seconds,
    transactions,
  })
  const included = () => chain.blocks.flatMap(({ transactions }) => transactions)
  const external = (changes: Partial<Included>): Included => {
    const from = account(8).address
    const own = { hash: fresh(), raw: fresh(), from, nonce: chain.count(from), maxFeeWei: 0n }
    return { ...own, to: token, data: '0x', success: true, ...none, gasUsed: 50_000n, ...changes }
  }
  const viewOf = (done: readonly Effects[]): View => ({
    chain,
    token,
    done: [...done],
    at: chain.seconds,
  })
  const add = (transactions: readonly Included[]) => {
    const block = blockAfter(chain.newest().number + 1, transactions)
    chain.blocks.push(block)
    return block
  }
  const chain: ScriptedChain = {
    blocks: [],
    pool: [],
    seconds: BigInt(startSeconds),
    baseFeeWei: 1_000_000_000n,
    fundsAtomic: 1_000_000n,
    gasOfCall: 60_000n,
    failing: new Set(),
    newest() {
      const block = chain.blocks.at(-1)
      if (!block) throw new Error('a chain without a block')
      return block
    },
    mine(transactions = takeReady(chain)) {
      const done: Included[] = []
      for (const each of transactions) done.push(execute(viewOf(done), each))
      return add(done)
    },
    include(raw) {
      const sent = parse(raw)
      chain.pool = chain.pool.filter(({ hash }) => hash !== sent.hash)
      return chain.mine([sent])
    },
    keep: (raw) => keep(chain, parse(raw)),
    settleExternally(transfer, ...more) {
      const { hash, raw } = signExternally(chain, transfer, more)
      chain.include(raw)
      return hash
    },
    cancel: ({ nonce }) => void add([external({ used: [nonce] })]),
    useNonce: (from) => void add([external({ from, nonce: chain.count(from) })]),
    drop: (count) => void chain.blocks.splice(chain.blocks.length - count, count),
    count: (from) => included().filter((each) => each.from === from).length,
    find: (hash) => find(chain, hash),
    aggregate(data) {
      const calls = Multicall.parseCalls(Multicall.multicallAddress, data) ?? []
      const view = { ...viewOf([]), at: chain.newest().timestamp }
      return resultsOf(calls.map((call) => read(view, call)))
    },
  }
  chain.blocks.push(blockAfter(1_000, []))
  return chain
}

/** The settling call as account 8 sends it. */
function signExternally(
  chain: ScriptedChain,
  transfer: Transfer.Transfer,
  more: readonly Transfer.Transfer[],
): Transaction.Signed {
  const other = account(8)
  const calls = [transfer, ...more].map((each) => Transfer.call(each))
  return Transaction.sign(
    {
      ...(more.length > 0 ? Multicall.aggregate(calls) : Transfer.call(transfer)),
      chainId: transfer.chainId,
      nonce: chain.count(other.address),
      maxTipWei: 0n,
      maxFeeWei: chain.baseFeeWei,
      gasLimit: 500_000n,
      valueWei: 0n,
    },
    Crypto.bytes(other.privateKey),
  )
}

function find({ blocks }: ScriptedChain, hash: string): ReturnType<ScriptedChain['find']> {
  for (const block of blocks) {
    const position = block.transactions.findIndex((each) => each.hash === hash)
    const transaction = block.transactions[position]
    if (transaction) return { block, transaction, position }
  }
  return undefined
}

function keep(chain: ScriptedChain, sent: Sent): void {
  const rival = chain.pool.find(({ from, nonce }) => from === sent.from && nonce === sent.nonce)
  if (rival && rival.maxFeeWei >= sent.maxFeeWei) return
  chain.pool = [...chain.pool.filter((each) => each !== rival), sent]
}

/** The signed bytes as a chain takes them. Throws for anything else. */
export function parse(raw: Hex): Sent {
  const parsed = Transaction.parse(raw)
  if (!parsed?.signer) throw new Error('not a signed transaction')
  const { hash, nonce, maxFeeWei, to, data, signer: from } = parsed
  return { hash, raw, from, nonce, maxFeeWei, to, data }
}

/** The executable transactions of the pool, without a nonce gap, which leave the pool. */
function takeReady(chain: ScriptedChain): Sent[] {
  const taken: Sent[] = []
  for (;;) {
    const next = chain.pool.find(
      ({ from, nonce }) =>
        nonce === chain.count(from) + taken.filter((each) => each.from === from).length,
    )
    if (!next) return taken
    taken.push(next)
    chain.pool = chain.pool.filter((each) => each !== next)
  }
}

type Effects = Pick<Included, 'used' | 'spent' | 'logs'>

/**
 * The state for a call: the blocks, the earlier calls of its own block, and the time of that block.
 */
type View = { chain: ScriptedChain; token: Address; done: Effects[]; at: bigint }

function execute(view: View, sent: Sent): Included {
  const { chain, done } = view
  const batch = Multicall.parseCalls(sent.to, sent.data)
  const calls = batch ?? [sent]
  const before = done.length
  let success = true
  for (const call of calls) {
    const money = Transfer.parseCall(call.to, call.data)
    const isFailing = money !== undefined && chain.failing.delete(money.nonce)
    const effects = isFailing ? undefined : settle(view, call)
    if (effects) done.push(effects)
    // A call that is not a settlement is one of ours, and succeeds.
    else if (money && !batch) success = false
  }
  const own = done.slice(before)
  return {
    ...sent,
    success,
    used: own.flatMap(({ used }) => used),
    spent: own.flatMap(({ spent }) => spent),
    logs: own.flatMap(({ logs }) => logs),
    gasUsed: chain.gasOfCall * BigInt(calls.length),
  }
}

/** The effect of a settling call; undefined when it fails. */
function settle(view: View, { to, data }: Call): Effects | undefined {
  const money = Transfer.parseCall(to, data)
  if (!money || isUsed(view, money.nonce)) return undefined
  const { payer, payee, amountAtomic, nonce, validBefore } = money
  if (fundsOf(view, payer) < amountAtomic || validBefore <= view.at) return undefined
  const from = Receipt.addressTopic(payer)
  const address = view.token
  const data32: Hex = `0x${Abi.uint(amountAtomic)}`
  return {
    used: [nonce],
    spent: [{ payer, amountAtomic }],
    logs: [
      { address, topics: [Receipt.authorizationUsedTopic, from, nonce], data: '0x' },
      { address, topics: [Receipt.transferTopic, from, Receipt.addressTopic(payee)], data: data32 },
    ],
  }
}

function effectsOf({ chain, done }: View): Effects[] {
  return [...chain.blocks.flatMap(({ transactions }) => transactions), ...done]
}

function isUsed(view: View, nonce: string): boolean {
  return effectsOf(view).some(({ used }) => used.includes(nonce))
}

function fundsOf(view: View, holder: string): bigint {
  return effectsOf(view)
    .flatMap(({ spent }) => spent)
    .filter(({ payer }) => payer === holder)
    .reduce((left, { amountAtomic }) => left - amountAtomic, view.chain.fundsAtomic)
}

const selectorOf = ({ data }: { data: string }) => data.slice(0, 10)
const anyone: Address = '0x0000000000000000000000000000000000000000'
const selectors = {
  nonce: selectorOf(Token.authorizationState(anyone, anyone, `0x${'0'.repeat(64)}`)),
  balance: selectorOf(Token.balanceOf(anyone, anyone)),
  time: selectorOf(Multicall.timestampCall),
  baseFee: selectorOf(Multicall.baseFeeCall),
}

/** The words of an answer, without prefix; undefined: the call fails. */
function read(view: View, call: Call): string | undefined {
  switch (selectorOf(call)) {
    case selectors.nonce:
      return Abi.uint(isUsed(view, `0x${call.data.slice(74)}`) ? 1 : 0)
    case selectors.balance: {
      const holder = Abi.addressAt(call.data.slice(10, 74))
      return Abi.uint(fundsOf(view, holder ?? ''))
    }
    case selectors.time:
      return Abi.uint(view.at)
    case selectors.baseFee:
      return Abi.uint(view.chain.baseFeeWei)
    default: {
      const effects = settle(view, call)
      if (effects) view.done.push(effects)
      return effects && ''
    }
  }
}

/** What `aggregate3` returns. */
function resultsOf(results: readonly (string | undefined)[]): Hex {
  const tuples = results.map(
    (words) =>
      Abi.uint(words === undefined ? 0 : 1) + Abi.uint(64) + Abi.dynamicBytes(`0x${words ?? ''}`),
  )
  let offset = results.length * 32
  let heads = ''
  for (const tuple of tuples) {
    heads += Abi.uint(offset)
    offset += tuple.length / 2
  }
  return `0x${Abi.uint(32)}${Abi.uint(results.length)}${heads}${tuples.join('')}`
}

import type { WriteEvent } from '../log'
import { type Block, isHex, parseBlock } from './receipt'

/**
 * New blocks that a node announces over WebSocket. They end a wait early. Polling continues beside
 * them, so a socket that fails or stays silent costs no more than polling.
 */
export type Heads = {
  /** Resolves at the next new block, after `ms`, or when the signal fires. Never rejects. */
  wait(ms: number, signal: AbortSignal): Promise<'block' | 'time' | 'stopped'>
  /** Like `wait`, but resolves only for a block whose parent is not the block before it. */
  waitFork(ms: number, signal: AbortSignal): Promise<'block' | 'time' | 'stopped'>
  /** Whether the newest connection has announced a block. */
  isLive(): boolean
  close(): void
}

type HeadsOptions = {
  /** `ws:` or `wss:`; empty: nothing is announced. */
  url: string
  onBlock?: (block: Block) => void
  log: WriteEvent
  /** First pause before a new connection; doubles up to a minute. */
  retryMs?: number
  /** A connection without a block for this long is closed. */
  silenceMs?: number
}

const retryMaxMs = 60_000

type Listener = () => void

/** Connects at once, and again whenever the connection ends. */
export function createHeads(options: HeadsOptions): Heads {
  const blockListeners = new Set<Listener>()
  const forkListeners = new Set<Listener>()
  let last: Block | undefined
  const connection = options.url === '' ? undefined : connect(options, announce)

  function announce(block: Block): void {
    const before = last
    last = block
    if (before?.hash === block.hash) return
    options.onBlock?.(block)
    const isFork =
      before !== undefined &&
      (block.number <= before.number ||
        (block.number === before.number + 1n && block.parentHash !== before.hash))
    notify(blockListeners)
    if (isFork) notify(forkListeners)
  }

  return {
    wait: (ms, signal) => waitFor(blockListeners, ms, signal),
    waitFork: (ms, signal) => waitFor(forkListeners, ms, signal),
    isLive: () => connection?.isLive() ?? false,
    close: () => connection?.close(),
  }
}

function notify(listeners: Set<Listener>): void {
  const all = [...listeners]
  listeners.clear()
  for (const listener of all) listener()
}

function waitFor(
  listeners: Set<Listener>,
  ms: number,
  signal: AbortSignal,
): Promise<'block' | 'time' | 'stopped'> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve('stopped')
    const end = (why: 'block' | 'time' | 'stopped') => {
      clearTimeout(timer)
      listeners.delete(onBlock)
      signal.removeEventListener('abort', onAbort)
      resolve(why)
    }
    const onBlock = () => end('block')
    const onAbort = () => end('stopped')
    const timer = setTimeout(() => end('time'), ms)
    listeners.add(onBlock)
    signal.addEventListener('abort', onAbort)
  })
}

/** Maintains one subscription. */
function connect(options: HeadsOptions, announce: (block: Block) => void) {
  const { url, log, retryMs = 1_000, silenceMs = 60_000 } = options
  // Paths of URLs may contain keys.
  const { host } = new URL(url)
  let pauseMs = retryMs
  let socket: WebSocket | undefined
  let timer: ReturnType<typeof setTimeout> | undefined
  let isClosed = false
  let isLive = false

  const open = () => {
    const current = new WebSocket(url)
    socket = current
    let isOver = false
    const over = () => {
      if (isOver) return
      isOver = true
      clearTimeout(timer)
      current.close()
      if (isLive) log('heads-lost', { host })
      isLive = false
      if (isClosed) return
      timer = setTimeout(open, pauseMs)
      pauseMs = Math.min(retryMaxMs, pauseMs * 2)
    }
    const guard = () => {
      clearTimeout(timer)
      timer = setTimeout(over, silenceMs)
    }
    guard()
    current.onopen = () => {
      current.send('{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}')
    }
    current.onclose = over
    current.onerror = over
    current.onmessage = ({ data }) => {
      if (isOver) return
      const message = parse(data)
      // This node has no subscriptions now. The URL may lead to another node next time.
      if (message === 'refused') return over()
      if (message === undefined) return
      if (!isLive) log('heads-live', { host })
      isLive = true
      pauseMs = retryMs
      guard()
      announce(message)
    }
  }
  open()
  return {
    isLive: () => isLive,
    close() {
      isClosed = true
      clearTimeout(timer)
      socket?.close()
    },
  }
}

/** The block of a notification; undefined for the confirmation and for invalid messages. */
function parse(data: unknown): Block | 'refused' | undefined {
  if (typeof data !== 'string') return undefined
  let value: unknown
  try {
    value = JSON.parse(data)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null) return undefined
  if ('error' in value) return 'refused'
  if (!('params' in value) || typeof value.params !== 'object' || value.params === null) {
    return undefined
  }
  const block = 'result' in value.params ? parseBlock(value.params.result) : undefined
  return block && isHex(block.hash) ? block : undefined
}

/** Answers of JSON-RPC 2.0, as nodes give them. EIP-1474. */

type CallError = { code: number; message: string; data: unknown }

export type Answer = {
  id: unknown
  result: unknown
  error: CallError | undefined
}

/** Patterns search in it, and the contract of a stranger may choose a part of it. */
const messageMax = 1024

/** Undefined when the text is not an answer. A long message of an error is cut. */
export function parse(text: string): Answer | undefined {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null) return undefined
  const id = 'id' in value ? value.id : undefined
  if ('error' in value && typeof value.error === 'object' && value.error !== null) {
    const { code, message, data } = value.error as Record<string, unknown>
    if (typeof code !== 'number' || typeof message !== 'string') return undefined
    return { id, result: undefined, error: { code, message: message.slice(0, messageMax), data } }
  }
  return 'result' in value ? { id, result: value.result, error: undefined } : undefined
}

/** Node codes for "busy" and "limit exceeded": a fault of the node, not of the call. */
const nodeTrouble = new Set([-32005, -32097, -32016, 429])

/** Whether another node may answer the call. */
export function isNodeTrouble(error: CallError, method: string): boolean {
  return nodeTrouble.has(error.code) && !isTooWide(error, method)
}

/**
 * Some providers refuse a range of logs with the code of their rate limits ("query returned more
 * than 10000 results"). Another node would refuse it, too, and a smaller range would be answered.
 */
function isTooWide({ code, message }: CallError, method: string): boolean {
  if (method !== 'eth_getLogs' || code !== -32005) return false
  return !/\brate\b|per (second|minute|day)|daily|requests|credit|quota|capacity/i.test(message)
}

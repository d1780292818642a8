import { extract } from '../paywall/extract'

/**
 * Whether a browser opens the address for a person to read. A browser that presents a payment is driven
 * by a program, which paid for the answer as it is.
 */
export function isNavigation({ method, headers }: Request): boolean {
  return (
    headers.get('sec-fetch-mode') === 'navigate' &&
    method === 'GET' &&
    headers.get('accept')?.includes('text/html') === true &&
    extract(headers).kind === 'none'
  )
}

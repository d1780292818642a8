import { Type } from '@sinclair/typebox'
import type { Config } from '../config/Config'
import { isToken } from '../http/bearer'
import { type Budget, readBody } from '../http/body'
import { assertUnpacked } from '../http/methods'
import * as Schema from '../protocol/Schema'
import { type AdminState, adminForm, adminPage } from './admin'
import { layout, respond } from './layout'

export type OperationOptions = {
  config: Config
  adminToken: string
  /** Called only for requests with the token. */
  adminState: () => Promise<AdminState>
  budget: Budget
  now: () => number
}

const formMaxBytes = 4096

/** The form of `POST /admin`. */
export const adminFields = Type.Object({ token: Type.String() })

/** The page for operators. `limit` throws when a client tries too many tokens. */
export function createOperation(options: OperationOptions, limit: (request: Request) => void) {
  const { config, now } = options
  const admin = async (request: Request, token: string): Promise<Response> => {
    const isRight = isToken(token, options.adminToken)
    const headers = isRight ? {} : { 'www-authenticate': 'Bearer realm="admin"' }
    const main = isRight
      ? adminPage(config, await options.adminState(), now())
      : adminForm('This token is wrong.')
    return respond(request, layout(config, { title: 'Operation', path: '/admin', main }), {
      status: isRight ? 200 : 401,
      isPrivate: true,
      headers,
    })
  }
  return {
    async operation(request: Request): Promise<Response> {
      const authorization = request.headers.get('authorization')
      if (authorization === null) {
        const page = { title: 'Operation', path: '/admin', main: adminForm() } as const
        return respond(request, layout(config, page), { isPrivate: true })
      }
      limit(request)
      return admin(request, /^bearer +(\S+) *$/i.exec(authorization)?.[1] ?? '')
    },
    async signIn(request: Request): Promise<Response> {
      limit(request)
      assertUnpacked(request.headers)
      const body = await readBody(request, formMaxBytes, options.budget)
      let form: URLSearchParams
      try {
        form = new URLSearchParams(new TextDecoder().decode(body.bytes))
      } finally {
        body.release()
      }
      return admin(request, Schema.readQuery(adminFields, form).values.token ?? '')
    },
  }
}

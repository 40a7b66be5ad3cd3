// Written by `wk hooks install opencode`: tells Watchkeeper what a session does. Without its folder it does nothing.
import { randomBytes } from "node:crypto"
import { existsSync, readFileSync, readdirSync, renameSync, unlinkSync, writeFileSync } from "node:fs"

const FOLDER = %(folder)s
const ANSWER = %(answer)s
const parents = new Map() // session of a sub-agent -> the session that started it
const reported = new Map() // session -> busy, idle or failed
const asked = new Map() // request -> the file of its question

const clip = (text) => (typeof text === "string" ? text.slice(0, 2000) : "")
const quietly = (work) => {
  try {
    return work()
  } catch {}
}
const root = (id) => {
  for (let n = 0; n < 20 && parents.has(id); n++) id = parents.get(id)
  return id
}

function write(folder, nonce, id, event, more) {
  const name = `${process.pid}.${nonce}.json`
  const about = { program: "opencode", session_id: root(id), hook_event_name: event, ...more }
  writeFileSync(`${FOLDER}/${folder}/.${name}`, JSON.stringify(about), { mode: 0o600, flag: "wx" })
  renameSync(`${FOLDER}/${folder}/.${name}`, `${FOLDER}/${folder}/${name}`)
  return `${FOLDER}/${folder}/${name}`
}

function tell(id, event, more) {
  quietly(() => {
    if (typeof id !== "string" || readdirSync(`${FOLDER}/spool`).length >= %(pending)d) return
    write("spool", randomBytes(8).toString("hex"), id, event, more)
  })
}

function change(id, state, event, more) {
  if (reported.get(id) === state) return
  if (reported.size > 1000) reported.clear()
  reported.set(id, state)
  tell(id, event, more)
}

function ask(request, client) {
  if (![request.id, request.sessionID].every((id) => typeof id === "string" && /^[\w-]+$/.test(id))) return
  process.kill(Number(readFileSync(`${FOLDER}/listening`, "utf8")), 0) // throws where no one listens
  const nonce = randomBytes(16).toString("hex")
  const input = { ...request.metadata, patterns: request.patterns }
  const file = write("asks", nonce, request.sessionID, "PermissionRequest", { tool_name: request.permission, tool_input: input })
  const answer = `${FOLDER}/answers/${nonce}.json`
  asked.set(request.id, { file, nonce })
  const timer = setInterval(() => {
    quietly(() => {
      if (!asked.has(request.id) || !existsSync(file)) return clearInterval(timer)
      if (!existsSync(answer)) return
      clearInterval(timer)
      const { behavior, message } = JSON.parse(readFileSync(answer, "utf8")).hookSpecificOutput.decision
      const body = behavior === "allow" ? { reply: "once" } : { reply: "reject", message: String(message) }
      const headers = { "content-type": "application/json" }
      client._client.post({ url: `/permission/${request.id}/reply`, body, headers }).catch(() => {})
    })
  }, 200)
  timer.unref?.()
}

function replied(id, request, reply) {
  const question = asked.get(request)
  asked.delete(request)
  if (question) {
    quietly(() => unlinkSync(question.file))
    quietly(() => unlinkSync(`${FOLDER}/answers/${question.nonce}.json`))
    tell(id, "PermissionReplied", { question: question.nonce, reply })
  }
  reported.delete(root(id))
  change(root(id), "busy", "UserPromptSubmit")
}

function take(type, about, client) {
  const id = about.sessionID ?? about.info?.id
  if (type === "session.created" || type === "session.updated") {
    if (about.info?.parentID && parents.size < 10000) parents.set(id, about.info.parentID)
    else if (type === "session.created") tell(id, "SessionStart", { source: "startup", cwd: about.info?.directory })
  } else if (type === "permission.asked" || type === "question.asked") {
    reported.delete(root(id))
    tell(id, "PermissionRequest", { tool_name: about.permission ?? "question" })
    if (ANSWER && type === "permission.asked") quietly(() => ask(about, client))
  } else if (type === "permission.replied" || type === "question.replied" || type === "question.rejected") {
    replied(id, about.requestID, about.reply)
  } else if (parents.has(id)) {
    return
  } else if (type === "session.status") {
    if (about.status?.type === "busy") change(id, "busy", "UserPromptSubmit")
  } else if (type === "session.error") {
    if (about.error?.name === "MessageAbortedError") change(id, "idle", "Interrupt")
    else change(id, "failed", "StopFailure", { error: clip(about.error?.data?.message ?? about.error?.name) })
  } else if (type === "session.idle") {
    if (reported.get(id) !== "failed") change(id, "idle", "Stop")
  } else if (type === "session.compacted") {
    tell(id, "PostCompact")
  } else if (type === "session.deleted") {
    tell(id, "SessionEnd", { reason: "deleted" })
  }
}

export const Watchkeeper = async ({ client }) => ({
  event: async ({ event }) => {
    quietly(() => take(event?.type, event?.properties ?? {}, client))
  },
  "experimental.session.compacting": async (input, output) => {
    quietly(() => {
      tell(input.sessionID, "PreCompact")
      if (/^[\w-]+$/.test(input.sessionID)) output.context.push(readFileSync(`${FOLDER}/instructions/${input.sessionID}`, "utf8"))
    })
  },
})

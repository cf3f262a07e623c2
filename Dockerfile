# The image of Chronos: one static program, its CA certificates, nothing else. `make image` builds the program, lays the files
# out in dist/image and calls an engine; where there is none, testbed/image.sh makes the same image from this very file, which
# is why every instruction stands on one line.
FROM scratch
ARG VERSION REVISION CREATED
COPY dist/image/ /
# In a container 127.0.0.1 is nobody's address but the container's own.
ENV CHRONOS_BIND=0.0.0.0
# By number, so that Kubernetes can see that it is not root. No file in the image belongs to it, and it needs to write none.
USER 65532:65532
EXPOSE 9096/tcp 9097/tcp
ENTRYPOINT ["/chronosd"]
CMD ["run"]
LABEL org.opencontainers.image.title="Chronos"
LABEL org.opencontainers.image.description="Wakes agents on time: a Kubernetes operator that treats alarms as resources."
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="$VERSION"
LABEL org.opencontainers.image.revision="$REVISION"
LABEL org.opencontainers.image.created="$CREATED"
